package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"sandbox-operator.dev/agent/internal/wire"
)

const maxLinks = 40 // as the kernel

// How says how a path is to be resolved.
type How struct {
	Follow  bool // the last component, if it is a link
	Parents bool // make missing directories on the way
	Change  bool // refuse what lies in a read-only grant
}

// Place is where a path led: a name in a directory that is held open. Nothing need have the name.
type Place struct {
	Dir  *os.Root
	Name string      // "." when the place is the root itself
	Path string      // without links
	Info fs.FileInfo // nil when nothing has the name
	Root *Root

	asked string
	held  []*os.Root
}

// Close gives the handles back.
func (p *Place) Close() {
	for _, h := range p.held {
		h.Close()
	}
	p.held = nil
}

// Error says what went wrong here, by the path as it was asked for.
func (p *Place) Error(err error) error {
	if err == nil {
		return nil
	}
	return wire.From(err, p.asked)
}

// Missing is the error that nothing is here.
func (p *Place) Missing() error { return p.Error(syscall.ENOENT) }

// IsRoot says whether this is the workspace itself or a grant.
func (p *Place) IsRoot() bool { return p.Name == "." }

// Resolve walks a path.
func (rs Roots) Resolve(asked string, how How) (*Place, error) {
	abs, err := rs.clean(asked)
	if err != nil {
		return nil, err
	}
	w := walk{roots: rs, asked: asked, how: how}
	place, err := w.from(abs)
	for err == errRestart {
		w.drop(0)
		place, err = w.from(w.next)
	}
	if err != nil {
		w.drop(0)
		return nil, wire.From(err, asked)
	}
	place.asked = asked
	// The walk may have entered a grant that lies within the workspace.
	place.Root, _ = rs.find(place.Path)
	if how.Change && place.Root.ReadOnly {
		place.Close()
		return nil, wire.Fail(wire.ReadOnly, "the grant is read-only").At(asked)
	}
	return place, nil
}

// errRestart means that a link led to walk.next.
var errRestart = errors.New("restart")

// walk is one resolution: the directories from the root down to the current one, all held open.
type walk struct {
	roots Roots
	asked string
	how   How
	links int
	next  string

	root  *Root
	top   *os.Root
	held  []*os.Root // beneath top
	names []string   // of held
}

func (w *walk) drop(keep int) {
	for _, h := range w.held[keep:] {
		h.Close()
	}
	w.held, w.names = w.held[:keep], w.names[:keep]
}

func (w *walk) here() *os.Root {
	if len(w.held) == 0 {
		return w.top
	}
	return w.held[len(w.held)-1]
}

func (w *walk) path() string { return path.Join(append([]string{w.root.Path}, w.names...)...) }

// jump follows a link to an absolute path.
func (w *walk) jump(target string, rest []string) error {
	// The text of a link is resolved as text up to the root that it leads to; from there on it is walked.
	target = path.Clean(target)
	if r, _ := w.roots.find(target); r == nil {
		return wire.Fail(wire.PathEscapes, "a link leaves every root").At(w.asked)
	}
	w.next = strings.Join(append([]string{target}, rest...), "/")
	return errRestart
}

func (w *walk) from(abs string) (*Place, error) {
	var tail string
	w.root, tail = w.roots.find(abs)
	var err error
	if w.top, err = w.root.open(); err != nil {
		return nil, err
	}
	rest := components(tail)
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		last := len(rest) == 0
		if name == ".." {
			if len(w.held) == 0 {
				return nil, w.jump(path.Dir(w.root.Path)+"/"+strings.Join(rest, "/"), nil)
			}
			w.drop(len(w.held) - 1)
			continue
		}
		info, err := w.here().Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && last:
			return w.place(name, nil), nil
		case errors.Is(err, fs.ErrNotExist) && w.how.Parents:
			if err := w.make(name); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink != 0 && (!last || w.how.Follow):
			if w.links++; w.links > maxLinks {
				return nil, syscall.ELOOP
			}
			target, err := w.here().Readlink(name)
			if err != nil {
				return nil, err
			}
			if path.IsAbs(target) {
				return nil, w.jump(target, rest)
			}
			rest = append(components(target), rest...)
			continue
		case last:
			return w.place(name, info), nil
		case !info.IsDir():
			return nil, syscall.ENOTDIR
		}
		if err := w.enter(name); err != nil {
			return nil, err
		}
	}
	// The path ended in a directory that is open already: the root, or by a link to `.` or `..`.
	if n := len(w.held); n > 0 {
		self, name := w.held[n-1], w.names[n-1]
		info, err := self.Stat(".")
		if err != nil {
			return nil, err
		}
		w.drop(n - 1)
		return w.place(name, info), nil
	}
	info, err := w.top.Stat(".")
	if err != nil {
		return nil, err
	}
	return w.place(".", info), nil
}

func (w *walk) enter(name string) error {
	dir, err := w.here().OpenRoot(name)
	if err != nil {
		return err
	}
	w.held, w.names = append(w.held, dir), append(w.names, name)
	return nil
}

// make makes a missing directory on the way.
func (w *walk) make(name string) error {
	if w.how.Change {
		if r, _ := w.roots.find(path.Join(w.path(), name)); r.ReadOnly {
			return wire.Fail(wire.ReadOnly, "the grant is read-only").At(w.asked)
		}
	}
	if err := w.here().Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (w *walk) place(name string, info fs.FileInfo) *Place {
	p := &Place{Dir: w.here(), Name: name, Path: path.Join(w.path(), name), Info: info, held: w.held}
	w.held, w.names = nil, nil
	return p
}

// components splits a path that need not be clean.
func components(p string) []string {
	var cs []string
	for c := range strings.SplitSeq(p, "/") {
		if c != "" && c != "." {
			cs = append(cs, c)
		}
	}
	return cs
}

// OpenDir opens the directory that is at the place.
func (p *Place) OpenDir() (*os.Root, error) {
	if p.Info == nil {
		return nil, p.Missing()
	}
	if !p.Info.IsDir() {
		return nil, p.Error(syscall.ENOTDIR)
	}
	dir, err := OpenSame(p.Dir, p.Name, p.Info)
	return dir, p.Error(err)
}

// OpenSame opens a directory only if it is still the one that was seen, so that nothing follows a link that was
// put in its place: Root would follow one that stays beneath dir.
func OpenSame(dir *os.Root, name string, seen fs.FileInfo) (*os.Root, error) {
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	now, err := sub.Stat(".")
	if err == nil && !os.SameFile(seen, now) {
		err = syscall.ENOENT
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}
