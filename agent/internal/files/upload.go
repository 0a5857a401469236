package files

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/wire"
)

const temporary = ".sandbox-upload-"

// uploads are the temporary names in use: they are hidden from listings and archives. A file that only looks like
// one is not.
var uploads sync.Map

func unfinished(name string) bool {
	if !strings.HasPrefix(name, temporary) {
		return false
	}
	_, ok := uploads.Load(name)
	return ok
}

// Upload is a new file that takes its name only when it is whole.
type Upload struct {
	*os.File
	Mtime time.Time // of the file, if not zero

	dir       *os.Root
	temp      string
	nameless  bool // it has no name yet, not even the temporary one: nothing is left when the agent is killed
	name      string
	mode      uint32
	exclusive bool
	owner     *syscall.Stat_t
	place     *Place // to be closed at the end, if not nil
}

// Temporary reserves a temporary name; done gives it back.
func Temporary() (name string, done func()) {
	b := make([]byte, 8)
	_, _ = rand.Read(b)
	name = temporary + hex.EncodeToString(b)
	uploads.Store(name, nil)
	return name, func() { uploads.Delete(name) }
}

// small is the size of a file up to which it is written too fast for a name in between to be seen, or left behind.
const small = 64 << 10

// NewUpload starts a file that shall be dir/name with exactly this mode. The size may be unknown (negative).
func NewUpload(dir *os.Root, name string, mode uint32, size int64) (*Upload, error) {
	temp, done := Temporary()
	u := &Upload{dir: dir, temp: temp, name: name, mode: mode}
	if size < 0 || size > small {
		if u.File = nameless(dir); u.File != nil {
			u.nameless = true
			return u, nil
		}
	}
	var err error
	if u.File, err = dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		done()
		return nil, err
	}
	return u, nil
}

// named is set where files without a name can be made but not be given one (no /proc, odd file systems).
var named atomic.Bool

// nameless makes a file in a directory that has no name there; nil where the file system cannot.
func nameless(dir *os.Root) *os.File {
	if named.Load() {
		return nil
	}
	var fd int
	err := withFD(dir, func(d int) (err error) {
		fd, err = unix.Openat(d, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return nil // whatever it is, the ordinary way says it, or goes
	}
	return os.NewFile(uintptr(fd), "upload")
}

// appear gives a nameless file its temporary name, for a moment: a link cannot replace what has the final one.
func (u *Upload) appear() error {
	err := withFD(u.dir, func(d int) error {
		conn, err := u.File.SyscallConn()
		if err != nil {
			return err
		}
		var failed error
		err = conn.Control(func(fd uintptr) {
			self := "/proc/self/fd/" + strconv.Itoa(int(fd))
			failed = unix.Linkat(unix.AT_FDCWD, self, d, u.temp, unix.AT_SYMLINK_FOLLOW)
		})
		return errors.Join(err, failed)
	})
	if err == nil {
		u.nameless = false
	} else if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		named.Store(true)
	}
	return err
}

// Create starts the upload of a file. A link is written where it leads; an exclusive one refuses whatever has the
// name. Without a mode a new file gets 0644 and an existing one keeps its own.
func (rs Roots) Create(asked string, mode *uint32, parents, exclusive bool) (*Upload, error) {
	if mode != nil && *mode > 0o7777 {
		return nil, wire.Fail(wire.InvalidRequest, "a mode has at most the bits 07777").At(asked)
	}
	p, err := rs.Resolve(asked, How{Follow: !exclusive, Parents: parents, Change: true})
	if err != nil {
		return nil, err
	}
	perm := uint32(0o644)
	var owner *syscall.Stat_t
	switch {
	case p.Info == nil:
	case exclusive:
		err = syscall.EEXIST
	case p.Info.IsDir():
		err = syscall.EISDIR
	case !p.Info.Mode().IsRegular():
		err = wire.Fail(wire.InvalidRequest, "there is a %s, not a file", kind(p.Info.Mode())).At(asked)
	default:
		owner = p.Info.Sys().(*syscall.Stat_t)
		perm = owner.Mode & 0o7777
	}
	if mode != nil {
		perm = *mode
	}
	var u *Upload
	if err == nil {
		u, err = NewUpload(p.Dir, p.Name, perm, -1)
	}
	if err != nil {
		p.Close()
		return nil, p.Error(err)
	}
	u.exclusive, u.owner, u.place = exclusive, owner, p
	return u, nil
}

// Commit gives the file its name.
func (u *Upload) Commit() error {
	if u.owner != nil && (u.owner.Uid != uint32(os.Getuid()) || u.owner.Gid != uint32(os.Getgid())) {
		// As writing into the file would have left them. Where that is not allowed the file is the agent's.
		_ = u.Chown(int(u.owner.Uid), int(u.owner.Gid))
	}
	err := chmod(u.File, u.mode) // after chown, which clears bits
	if err == nil && u.nameless {
		err = u.appear()
	}
	if cerr := u.File.Close(); err == nil {
		err = cerr
	}
	if err == nil && !u.Mtime.IsZero() {
		err = u.dir.Chtimes(u.temp, u.Mtime, u.Mtime)
	}
	if err == nil {
		if u.exclusive {
			err = renameNew(u.dir, u.temp, u.dir, u.name)
		} else if err = u.dir.Rename(u.temp, u.name); errors.Is(err, fs.ErrExist) {
			err = syscall.EISDIR // Root says EEXIST for a directory
		}
	}
	if err != nil && !u.nameless {
		_ = u.dir.Remove(u.temp)
	}
	return u.end(err)
}

// Abort leaves nothing.
func (u *Upload) Abort() {
	u.File.Close()
	if !u.nameless {
		_ = u.dir.Remove(u.temp)
	}
	_ = u.end(nil)
}

func (u *Upload) end(err error) error {
	uploads.Delete(u.temp)
	if u.place != nil {
		err = u.place.Error(err)
		u.place.Close()
	}
	return err
}

// chmod sets the bits as they are given; os.File.Chmod takes only Go's form of them.
func chmod(f *os.File, mode uint32) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), mode) })
	return errors.Join(err, failed)
}

// renameNew renames only if nothing has the new name, not even a dangling link.
func renameNew(from *os.Root, old string, to *os.Root, name string) error {
	return rename(from, old, to, name, unix.RENAME_NOREPLACE)
}

func rename(from *os.Root, old string, to *os.Root, name string, flags uint) error {
	return withFD(from, func(f int) error {
		return withFD(to, func(t int) error { return unix.Renameat2(f, old, t, name, flags) })
	})
}

// withFD lends the descriptor of a directory, for what os.Root cannot do: the names used with it must be single
// components that no call follows.
func withFD(dir *os.Root, use func(fd int) error) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = use(int(fd)) }); err != nil {
		return err
	}
	return failed
}
