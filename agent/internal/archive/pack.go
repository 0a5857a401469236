// Package archive turns a directory into a tar stream, and a tar stream that nobody vouches for into a directory.
package archive

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"sandbox-operator.dev/agent/internal/files"
	"sandbox-operator.dev/agent/internal/wire"
)

// Pack writes what is at a path to w, as tar in PAX format: members relative to the path, parents before what is in
// them, sorted. Hard links become copies; sockets, devices and FIFOs are left out, and so is what disappears
// meanwhile.
func Pack(ctx context.Context, w io.Writer, roots files.Roots, asked string, skip []string) (int64, error) {
	place, err := roots.Resolve(asked, files.How{Follow: true})
	if err != nil {
		return 0, err
	}
	defer place.Close()
	if place.Info == nil {
		return 0, place.Missing()
	}
	out := &counter{w: w}
	p := &packer{ctx: ctx, tar: tar.NewWriter(out), root: place.Path, skip: map[string]bool{}}
	for _, s := range skip {
		clean := path.Clean(s)
		if path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") {
			return 0, wire.Fail(wire.InvalidRequest, "what is skipped is relative to the path, and beneath it").At(s)
		}
		p.skip[clean] = true
	}
	p.buf = wire.Buffer()
	defer wire.Release(p.buf)
	if place.Info.IsDir() {
		var dir *os.Root
		if dir, err = place.OpenDir(); err == nil {
			err = p.directory(dir, "")
			dir.Close()
		}
	} else {
		err = p.member(place.Dir, place.Name, place.Name, place.Info)
	}
	if err == nil {
		err = p.tar.Close()
	}
	return out.n, place.Error(err)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

type packer struct {
	ctx  context.Context
	tar  *tar.Writer
	root string // the path that is packed
	skip map[string]bool
	buf  *[]byte
}

func (p *packer) directory(dir *os.Root, at string) error {
	names, err := files.Names(dir, 1<<24)
	if err != nil {
		return p.at(at, err)
	}
	for _, name := range names {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		member := path.Join(at, name)
		if p.skip[member] {
			continue
		}
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = p.member(dir, name, member, info)
		}
		if err != nil {
			return p.at(member, err)
		}
	}
	return nil
}

// at names the file that an error is about, unless one is named.
func (p *packer) at(member string, err error) error {
	if p.ctx.Err() != nil {
		return p.ctx.Err()
	}
	return wire.From(err, path.Join(p.root, member))
}

func (p *packer) member(dir *os.Root, name, member string, info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	h := &tar.Header{
		Format: tar.FormatPAX, Name: member, Mode: int64(st.Mode) & 0o7777, ModTime: info.ModTime(),
		Uid: int(st.Uid), Gid: int(st.Gid),
	}
	switch {
	case info.IsDir():
		sub, err := files.OpenSame(dir, name, info)
		if errors.Is(err, fs.ErrPermission) {
			// What is in it can be looked up only as long as the bits are there.
			restore, lerr := files.Lend(dir, name, info, 0o500)
			if lerr != nil {
				return unreadable(lerr)
			}
			defer restore()
			sub, err = files.OpenSame(dir, name, info)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return unreadable(err)
		}
		defer sub.Close()
		h.Typeflag, h.Name = tar.TypeDir, member+"/"
		if err := p.tar.WriteHeader(h); err != nil {
			return err
		}
		return p.directory(sub, member)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := dir.Readlink(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
			return nil // gone, or something else by now
		}
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, p.relative(member, target)
		return p.tar.WriteHeader(h)
	case info.Mode().IsRegular():
		f, now, err := files.OpenRegular(dir, name)
		if errors.Is(err, fs.ErrPermission) {
			restore, lerr := files.Lend(dir, name, info, 0o400)
			if lerr != nil {
				return unreadable(lerr)
			}
			f, now, err = files.OpenRegular(dir, name)
			restore()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return unreadable(err)
		}
		defer f.Close()
		if !os.SameFile(info, now) {
			return nil // replaced since it was looked at; by a link to another file, perhaps
		}
		h.Typeflag, h.Size = tar.TypeReg, now.Size()
		if err := p.tar.WriteHeader(h); err != nil {
			return err
		}
		return p.content(f, h.Size)
	}
	return nil
}

// unreadable says what to do about a member that another user has closed to the agent.
func unreadable(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	e := wire.Fail(wire.PermissionDenied,
		"uid %d may not read this, so what it is in cannot be packed: make it readable for everybody, or remove it", os.Getuid())
	e.Errno = "EACCES"
	return e
}

// content writes exactly as many bytes as the header says: a file that grows meanwhile is cut, one that shrinks is
// filled up with zeros, as tar does.
func (p *packer) content(f *os.File, size int64) error {
	for size > 0 {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		b := (*p.buf)[:min(int64(len(*p.buf)), size)]
		n, err := io.ReadFull(f, b)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			clear(b[n:])
		} else if err != nil {
			return err
		}
		if _, err := p.tar.Write(b); err != nil {
			return err
		}
		size -= int64(len(b))
	}
	return nil
}

// relative makes a link that points into what is packed independent of where that is.
func (p *packer) relative(member, target string) string {
	if !path.IsAbs(target) {
		return target
	}
	inside, ok := within(path.Clean(target), p.root)
	if !ok {
		return target
	}
	return climb(member) + inside
}

// within gives a path relative to dir, "." for dir itself.
func within(abs, dir string) (string, bool) {
	if abs == dir {
		return ".", true
	}
	return strings.CutPrefix(abs, strings.TrimSuffix(dir, "/")+"/")
}

// climb leads from the directory of a member up to the root of the archive.
func climb(member string) string { return strings.Repeat("../", strings.Count(member, "/")) }
