package archive

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"syscall"
	"time"

	"sandbox-operator.dev/agent/internal/files"
	"sandbox-operator.dev/agent/internal/wire"
)

// DefaultMaxMembers holds when the request names no limit: what is remembered of each member takes memory.
const DefaultMaxMembers = 1_000_000

// Rules bound what an archive may unpack to. MaxBytes counts the content of files; negative means no limit. With
// LinksAsIs a link is content like any other, wherever it leads: for an archive that gives a workspace back what was in
// it (a Python venv links to the image's interpreter). Nothing is ever written through a link either way.
type Rules struct {
	MaxMembers int64
	MaxBytes   int64
	LinksAsIs  bool
}

// Unpacked says what was unpacked.
type Unpacked struct {
	Members int64 `json:"members"`
	Bytes   int64 `json:"bytes"`
}

// Unpack puts the members of a tar stream, optionally gzip, into a directory, which is made if it is missing. Each
// member is checked before anything of it is written; a member that was not whole leaves nothing, those before it
// stay. Owners are not taken over, and set-id bits of files are dropped.
func Unpack(r io.Reader, roots files.Roots, asked string, rules Rules, stripRoot string) (Unpacked, error) {
	place, err := roots.Resolve(asked, files.How{Follow: true, Parents: true, Change: true})
	if err != nil {
		return Unpacked{}, err
	}
	defer place.Close()
	if place.Info == nil {
		if err := place.Dir.Mkdir(place.Name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return Unpacked{}, place.Error(err)
		}
		if place.Info, err = place.Dir.Lstat(place.Name); err != nil {
			return Unpacked{}, place.Error(err)
		}
	}
	dir, err := place.OpenDir()
	if err != nil {
		return Unpacked{}, err
	}
	defer dir.Close()
	u := &unpacker{
		dir: dir, root: place.Path, rules: rules, strip: strings.Trim(path.Clean("/"+stripRoot), "/"),
		seed: maphash.MakeSeed(), seen: map[uint64]struct{}{},
	}
	defer u.leave()
	source := &origin{r: r}
	err = u.all(source)
	if source.err != nil {
		// The upload itself failed, whatever the tar reader made of it.
		return u.done, source.err
	}
	return u.done, place.Error(err)
}

// origin remembers the error of the upload: to a tar or gzip reader, it is only a stream that is too short.
type origin struct {
	r   io.Reader
	err error
}

func (o *origin) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	if err != nil && err != io.EOF {
		o.err = err
	}
	return n, err
}

type unpacker struct {
	dir   *os.Root
	root  string // the path of dir
	rules Rules
	strip string
	done  Unpacked

	// Of the names only hashes are kept, since there may be a million. The seed is random: nobody can make two collide.
	seed maphash.Seed
	seen map[uint64]struct{}

	parent string   // where the last member was put, and its handle: most have the same parent
	handle *os.Root // nil for dir itself
	later  []finish
}

// finish is what a directory gets once all that is in it is there: it may be read-only, and its time changes.
type finish struct {
	name  string
	mode  fs.FileMode
	mtime time.Time
}

func (u *unpacker) all(r io.Reader) error {
	buffered := bufio.NewReaderSize(r, 32<<10)
	r = buffered
	if magic, _ := buffered.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return wire.Fail(wire.InvalidArchive, "not gzip: %v", err)
		}
		r = z
	}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return wire.Fail(wire.InvalidArchive, "not a tar archive: %v", err)
		}
		if err := u.member(t, h); err != nil {
			return wire.From(err, h.Name)
		}
	}
	// What may follow the archive's end is padding; the upload's own end must still come.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return wire.Fail(wire.InvalidArchive, "damaged: %v", err)
	}
	if _, err := io.Copy(io.Discard, buffered); err != nil {
		return err
	}
	return u.finish()
}

func refuse(format string, args ...any) error {
	return wire.Fail(wire.InvalidArchive, format, args...)
}

// name checks a member's name and gives it without the root that is to be stripped; "" for the root itself.
func (u *unpacker) name(raw string) (string, error) {
	if raw == "" || strings.IndexByte(raw, 0) >= 0 {
		return "", refuse("a member has no usable name")
	}
	if path.IsAbs(raw) {
		return "", refuse("a member's name is absolute")
	}
	for c := range strings.SplitSeq(raw, "/") {
		if c == ".." {
			return "", refuse("a member's name has `..`")
		}
	}
	name := path.Clean(raw)
	if u.strip != "" {
		if inside, ok := within(name, u.strip); ok {
			name = inside
		}
	}
	if name == "." {
		return "", nil
	}
	return name, nil
}

func (u *unpacker) member(t *tar.Reader, h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeGNUSparse:
	case tar.TypeLink:
		return refuse("hard links are not unpacked")
	case tar.TypeChar, tar.TypeBlock:
		return refuse("devices are not unpacked")
	case tar.TypeFifo:
		return refuse("FIFOs are not unpacked")
	default:
		return refuse("a member of unknown type %q", h.Typeflag)
	}
	name, err := u.name(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return refuse("the root of the archive is not a directory")
		}
		return nil
	}
	if u.done.Members >= u.rules.MaxMembers {
		return wire.Fail(wire.TooLarge, "the archive has more than %d members", u.rules.MaxMembers)
	}
	if h.Size < 0 || u.rules.MaxBytes >= 0 && h.Size > u.rules.MaxBytes-u.done.Bytes {
		return wire.Fail(wire.TooLarge, "the archive holds more than %d bytes", u.rules.MaxBytes)
	}
	sum := maphash.String(u.seed, name)
	if _, twice := u.seen[sum]; twice {
		return refuse("a member is there twice")
	}
	u.seen[sum] = struct{}{}
	target := ""
	if h.Typeflag == tar.TypeSymlink {
		if target, err = u.target(name, h.Linkname); err != nil {
			return err
		}
	}
	at, base := path.Split(name)
	dir, err := u.enter(strings.TrimSuffix(at, "/"))
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(dir, base, name, h)
	case tar.TypeSymlink:
		err = link(dir, base, target)
	default:
		err = u.file(t, dir, base, h)
	}
	if err != nil {
		return err
	}
	u.done.Members++
	u.done.Bytes += h.Size
	return nil
}

// target checks where a link leads, unless the rules take it as it is, and gives it relative. `..` only counts at its beginning: after a name that may
// itself be a link, the text does not tell where it leads.
func (u *unpacker) target(name, raw string) (string, error) {
	if raw == "" || strings.IndexByte(raw, 0) >= 0 {
		return "", refuse("a link has no usable target")
	}
	if u.rules.LinksAsIs {
		return raw, nil
	}
	depth := strings.Count(name, "/")
	target := raw
	if path.IsAbs(raw) {
		inside, ok := within(path.Clean(raw), u.root)
		if !ok {
			return "", refuse("a link leaves the root")
		}
		return climb(name) + inside, nil
	}
	down := false
	for c := range strings.SplitSeq(target, "/") {
		switch {
		case c == "" || c == ".":
		case c != "..":
			down = true
		case down:
			return "", refuse("a link goes down and up again, so that where it leads depends on other links")
		default:
			if depth--; depth < 0 {
				return "", refuse("a link leaves the root")
			}
		}
	}
	return target, nil
}

func (u *unpacker) leave() {
	if u.handle != nil {
		u.handle.Close()
	}
	u.parent, u.handle = "", nil
}

// enter gives the directory that a member lies in. Missing ones are made; a link on the way is refused, whoever
// made it.
func (u *unpacker) enter(at string) (*os.Root, error) {
	if at == u.parent {
		if u.handle == nil {
			return u.dir, nil
		}
		return u.handle, nil
	}
	u.leave()
	current := u.dir
	for c := range strings.SplitSeq(at, "/") {
		if at == "" {
			break
		}
		next, err := step(current, c)
		if current != u.dir {
			current.Close()
		}
		if err != nil {
			return nil, err
		}
		current = next
	}
	if current != u.dir {
		u.handle = current
	}
	u.parent = at
	return current, nil
}

func step(dir *os.Root, name string) (*os.Root, error) {
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := dir.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		info, err = dir.Lstat(name)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, refuse("a member lies beneath a link or a file")
	}
	return files.OpenSame(dir, name, info)
}

func (u *unpacker) directory(dir *os.Root, base, name string, h *tar.Header) error {
	info, err := dir.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = dir.Mkdir(base, 0o700)
	case err == nil && !info.IsDir():
		return refuse("a directory has the name of a link or a file")
	case err == nil:
		err = dir.Chmod(base, info.Mode()|0o700)
	}
	if err != nil {
		return err
	}
	u.later = append(u.later, finish{name, mode(h.Mode, true), h.ModTime})
	return nil
}

func mode(m int64, directory bool) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	if directory {
		if m&0o2000 != 0 {
			mode |= fs.ModeSetgid
		}
		if m&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
	}
	return mode
}

func (u *unpacker) file(t *tar.Reader, dir *os.Root, base string, h *tar.Header) error {
	if err := replaceable(dir, base); err != nil {
		return err
	}
	f, err := files.NewUpload(dir, base, uint32(h.Mode)&0o777, h.Size)
	if err != nil {
		return err
	}
	f.Mtime = h.ModTime
	buf := wire.Buffer()
	defer wire.Release(buf)
	// Not ReadFrom: it would take a buffer of its own.
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{t}, *buf)
	if err == nil && n != h.Size {
		err = refuse("a member is shorter than it says")
	}
	if err != nil {
		f.Abort()
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
			err = refuse("the archive ends within a member")
		}
		return err
	}
	return f.Commit()
}

// replaceable refuses to put a file or a link where a directory is.
func replaceable(dir *os.Root, base string) error {
	if info, err := dir.Lstat(base); err == nil && info.IsDir() {
		return syscall.EISDIR
	}
	return nil
}

// link makes a link beside its name and moves it there, so that it replaces what has the name, and nothing follows.
func link(dir *os.Root, base, target string) error {
	if err := replaceable(dir, base); err != nil {
		return err
	}
	temp, done := files.Temporary()
	defer done()
	err := dir.Symlink(target, temp)
	if err == nil {
		if err = dir.Rename(temp, base); err != nil {
			_ = dir.Remove(temp)
		}
	}
	return err
}

// finish gives directories their modes and times, the innermost first.
func (u *unpacker) finish() error {
	u.leave()
	sort.Slice(u.later, func(i, j int) bool { return u.later[i].name > u.later[j].name })
	for _, f := range u.later {
		at, base := path.Split(f.name)
		dir, err := u.enter(strings.TrimSuffix(at, "/"))
		if err == nil {
			if err = dir.Chmod(base, f.mode); err == nil {
				err = dir.Chtimes(base, f.mtime, f.mtime)
			}
		}
		if err != nil {
			return wire.From(err, f.name)
		}
	}
	return nil
}
