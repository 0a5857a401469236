package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/wire"
)

// Mkdir makes a directory, with exactly the mode if one is given. With parents an existing one is fine.
func (rs Roots) Mkdir(asked string, parents bool, mode *uint32) error {
	if mode != nil && *mode > 0o7777 {
		return wire.Fail(wire.InvalidRequest, "a mode has at most the bits 07777").At(asked)
	}
	p, err := rs.Resolve(asked, How{Follow: parents, Parents: parents, Change: true})
	if err != nil {
		return err
	}
	defer p.Close()
	if p.Info != nil {
		if parents && p.Info.IsDir() {
			return nil
		}
		return p.Error(syscall.EEXIST)
	}
	err = p.Dir.Mkdir(p.Name, 0o755)
	if err == nil && mode != nil {
		err = p.Dir.Chmod(p.Name, fileMode(*mode))
	}
	if parents && errors.Is(err, fs.ErrExist) {
		if info, serr := p.Dir.Lstat(p.Name); serr == nil && info.IsDir() {
			return nil // someone else was as quick
		}
	}
	return p.Error(err)
}

// fileMode gives Go's form of mode bits.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// Remove removes what has the name, never what a link leads to, and says how many names are gone.
func (rs Roots) Remove(ctx context.Context, asked string, recursive, missingOK bool) (int, error) {
	p, err := rs.Resolve(asked, How{Change: true})
	if err != nil {
		var e *wire.Error
		if missingOK && errors.As(err, &e) && e.Code == wire.NotFound {
			return 0, nil
		}
		return 0, err
	}
	defer p.Close()
	switch {
	case p.Info == nil && missingOK:
		return 0, nil
	case p.Info == nil:
		return 0, p.Missing()
	case p.IsRoot() || rs.holds(p.Path):
		return 0, wire.Fail(wire.InvalidRequest, "a root cannot be removed").At(asked)
	}
	n := 0
	if recursive && p.Info.IsDir() {
		err = empty(ctx, p.Dir, p.Name, p.Info, &n)
	}
	if err == nil {
		if err = p.Dir.Remove(p.Name); err == nil {
			n++
		}
	}
	if missingOK && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return n, p.Error(err)
}

// empty removes what is in a directory. It goes by handles, and does not enter what became a link meanwhile.
func empty(ctx context.Context, parent *os.Root, name string, seen fs.FileInfo, n *int) error {
	dir, err := OpenSame(parent, name, seen)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := dir.Remove(name)
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
			info, lerr := dir.Lstat(name)
			if lerr != nil {
				return lerr
			}
			if err = empty(ctx, dir, name, info, n); err == nil {
				err = dir.Remove(name)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // someone else removed it
		}
		if err != nil {
			return err
		}
		*n++
	}
	return nil
}

// Move renames. A link is moved, or replaced, itself.
func (rs Roots) Move(source, destination string, replace bool) error {
	from, err := rs.Resolve(source, How{Change: true})
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := rs.Resolve(destination, How{Change: true})
	if err != nil {
		return err
	}
	defer to.Close()
	switch {
	case from.Info == nil:
		return from.Missing()
	case from.IsRoot() || rs.holds(from.Path):
		return wire.Fail(wire.InvalidRequest, "a root cannot be moved").At(source)
	case to.IsRoot():
		return to.Error(syscall.EEXIST)
	case strings.HasPrefix(to.Path, from.Path+"/"):
		return wire.Fail(wire.InvalidRequest, "a directory cannot be moved into itself").At(destination)
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if replace {
		flags = 0
	}
	err = rename(from.Dir, from.Name, to.Dir, to.Name, flags)
	if errors.Is(err, syscall.EXDEV) {
		e := wire.Fail(wire.IO, "source and destination are on different file systems").At(destination)
		e.Errno = "EXDEV" // by which the client knows that it must copy
		return e
	}
	if errors.Is(err, fs.ErrNotExist) {
		return from.Error(err)
	}
	return to.Error(err)
}
