package files

import (
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/wire"
)

// OpenRegular opens a regular file. Nonblocking, since a FIFO would otherwise hold the caller for ever.
func OpenRegular(dir *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = syscall.EISDIR
	} else if err == nil && !info.Mode().IsRegular() {
		err = wire.Fail(wire.InvalidRequest, "this is a %s, not a file", kind(info.Mode()))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Lend gives the agent's own file or directory permission bits that its owner has taken from himself (mode 000), until
// restore is called. An owner may, and so what is his can be packed whatever its mode is. Someone else's is EACCES.
func Lend(dir *os.Root, name string, seen fs.FileInfo, bits uint32) (restore func(), err error) {
	var fd int
	if err := withFD(dir, func(d int) (err error) {
		fd, err = unix.Openat(d, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	}); err != nil {
		return nil, err
	}
	// A descriptor rather than the name: nothing that was put in its place meanwhile is changed.
	self := "/proc/self/fd/" + strconv.Itoa(fd)
	old, now := seen.Sys().(*syscall.Stat_t), unix.Stat_t{}
	err = unix.Fstat(fd, &now)
	switch {
	case err != nil:
	case now.Dev != old.Dev || now.Ino != old.Ino:
		err = syscall.ENOENT
	case now.Uid != uint32(os.Geteuid()):
		err = syscall.EACCES
	default:
		err = unix.Chmod(self, now.Mode&0o7777|bits)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return func() {
		defer unix.Close(fd)
		lent := unix.Stat_t{}
		if unix.Fstat(fd, &lent) == nil && lent.Mode == now.Mode|bits { // else it has been given another mode meanwhile
			_ = unix.Chmod(self, now.Mode&0o7777)
		}
	}, nil
}

// Open opens a file for reading, at an offset and up to a limit (none if nil).
func (rs Roots) Open(asked string, offset int64, limit *int64) (io.ReadCloser, error) {
	if offset < 0 || limit != nil && *limit < 0 {
		return nil, wire.Fail(wire.InvalidRequest, "offset and limit cannot be negative").At(asked)
	}
	p, err := rs.Resolve(asked, How{Follow: true})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if p.Info == nil {
		return nil, p.Missing()
	}
	// Said before it is opened: opening a device or a FIFO can have effects.
	if !p.Info.IsDir() && !p.Info.Mode().IsRegular() {
		return nil, wire.Fail(wire.InvalidRequest, "this is a %s, not a file", kind(p.Info.Mode())).At(asked)
	}
	f, _, err := OpenRegular(p.Dir, p.Name)
	if err != nil {
		if e, ok := err.(*wire.Error); ok {
			return nil, e.At(asked)
		}
		return nil, p.Error(err)
	}
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			f.Close()
			return nil, p.Error(err)
		}
	}
	if limit == nil {
		return f, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(f, *limit), f}, nil
}
