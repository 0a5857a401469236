package files

import (
	"io/fs"
	"os"
	"path"
	"sort"
	"strconv"
	"syscall"

	"sandbox-operator.dev/agent/internal/wire"
)

// MaxEntries is the largest directory that is listed.
const MaxEntries = 100_000

// Info describes a file as `list` and `stat` do.
type Info struct {
	Name     wire.Name
	Kind     string
	Size     int64
	Mode     uint32 // the permission bits, with set-id and sticky
	Mtime    int64  // in nanoseconds
	UID, GID uint32
	Link     wire.Name // of a link
	Path     wire.Name // for `stat`
}

// AppendJSON is written out: reflection would take most of the time of listing a large directory.
func (i *Info) AppendJSON(b []byte) []byte {
	b = i.Name.AppendJSON(append(b, `{"name":`...))
	b = append(append(b, `,"kind":"`...), i.Kind...)
	b = strconv.AppendInt(append(b, `","size":`...), i.Size, 10)
	b = strconv.AppendUint(append(b, `,"mode":`...), uint64(i.Mode), 10)
	b = strconv.AppendInt(append(b, `,"mtime_ns":`...), i.Mtime, 10)
	b = strconv.AppendUint(append(b, `,"uid":`...), uint64(i.UID), 10)
	b = strconv.AppendUint(append(b, `,"gid":`...), uint64(i.GID), 10)
	if i.Kind == "link" {
		b = i.Link.AppendJSON(append(b, `,"link":`...))
	}
	if i.Path != "" {
		b = i.Path.AppendJSON(append(b, `,"path":`...))
	}
	return append(b, '}')
}

// MarshalJSON is AppendJSON for encoding/json.
func (i Info) MarshalJSON() ([]byte, error) { return i.AppendJSON(nil), nil }

func kind(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "directory"
	case m&fs.ModeSymlink != 0:
		return "link"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeSocket != 0:
		return "socket"
	default:
		return "device"
	}
}

func describe(dir *os.Root, name string, fi fs.FileInfo) Info {
	st := fi.Sys().(*syscall.Stat_t)
	i := Info{
		Name: wire.Name(name), Kind: kind(fi.Mode()), Size: fi.Size(), Mode: uint32(st.Mode) & 0o7777,
		Mtime: fi.ModTime().UnixNano(), UID: st.Uid, GID: st.Gid,
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		link, _ := dir.Readlink(name)
		i.Link = wire.Name(link)
	}
	return i
}

// Stat describes what is at a path.
func (rs Roots) Stat(asked string, follow bool) (Info, error) {
	p, err := rs.Resolve(asked, How{Follow: follow})
	if err != nil {
		return Info{}, err
	}
	defer p.Close()
	if p.Info == nil {
		return Info{}, p.Missing()
	}
	i := describe(p.Dir, p.Name, p.Info)
	i.Name, i.Path = wire.Name(path.Base(p.Path)), wire.Name(p.Path)
	return i, nil
}

// List describes what is in a directory, sorted by name. Uploads that are not whole yet are not there.
func (rs Roots) List(asked string) ([]Info, error) {
	p, err := rs.Resolve(asked, How{Follow: true})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	dir, err := p.OpenDir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := Names(dir, MaxEntries)
	if err != nil {
		return nil, p.Error(err)
	}
	infos := make([]Info, 0, len(names))
	for _, name := range names {
		if fi, err := dir.Lstat(name); err == nil { // else it has just been removed
			infos = append(infos, describe(dir, name, fi))
		}
	}
	return infos, nil
}

// Names gives the names in a directory, sorted, without uploads that are not whole yet.
func Names(dir *os.Root, limit int) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(limit + 1)
	if len(names) > limit {
		return nil, wire.Fail(wire.TooLarge, "the directory has more than %d entries", limit)
	}
	if err != nil && len(names) > 0 {
		return nil, err
	}
	whole := names[:0]
	for _, name := range names {
		if !unfinished(name) {
			whole = append(whole, name)
		}
	}
	sort.Strings(whole)
	return whole, nil
}
