// Package files acts on the workspace and the granted directories, and on nothing else.
//
// A path is walked component by component through os.Root handles, so that every step is checked by the kernel
// against the directory it is taken in; a link is followed by rewriting the rest of the path, and only to where a
// root is again. What is found is a handle of a directory and one name in it: whatever a concurrent process swaps
// for a link after that, an operation cannot leave that directory.
package files

import (
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"sandbox-operator.dev/agent/internal/wire"
)

// maxPath is the longest path that is looked at, as the kernel's PATH_MAX.
const maxPath = 4096

// Root is a directory beneath which the client may act.
type Root struct {
	Path     string
	ReadOnly bool

	mu     sync.Mutex
	handle *os.Root
	id     fs.FileInfo
}

// Roots are the workspace, which is the first, and the grants.
type Roots []*Root

// open gives the handle of the root. It is opened again when the directory is no longer the one that has its name.
func (r *Root) open() (*os.Root, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, err := os.Stat(r.Path)
	if err != nil {
		return nil, wire.From(err, r.Path)
	}
	if r.handle != nil && os.SameFile(id, r.id) {
		return r.handle, nil
	}
	handle, err := os.OpenRoot(r.Path)
	if err != nil {
		return nil, wire.From(err, r.Path)
	}
	// The old handle is left to the garbage collector: an operation may be using it.
	r.handle, r.id = handle, id
	return handle, nil
}

// find gives the innermost root that a clean path lies in, and the rest of the path.
func (rs Roots) find(abs string) (*Root, string) {
	var found *Root
	var rest string
	for _, r := range rs {
		if tail, ok := beneath(abs, r.Path); ok && (found == nil || len(r.Path) > len(found.Path)) {
			found, rest = r, tail
		}
	}
	return found, rest
}

// holds says whether a root other than at abs itself lies beneath abs.
func (rs Roots) holds(abs string) bool {
	for _, r := range rs {
		if tail, ok := beneath(r.Path, abs); ok && tail != "" {
			return true
		}
	}
	return false
}

// beneath gives what follows dir in abs, "" for dir itself.
func beneath(abs, dir string) (string, bool) {
	if abs == dir {
		return "", true
	}
	return strings.CutPrefix(abs, strings.TrimSuffix(dir, "/")+"/")
}

// clean checks a path that the client gave. `..` is resolved in the text, before any link is looked at.
func (rs Roots) clean(p string) (string, error) {
	if len(p) > maxPath {
		return "", wire.Fail(wire.InvalidRequest, "a path has at most %d bytes, not %d", maxPath, len(p))
	}
	if !path.IsAbs(p) {
		return "", wire.Fail(wire.InvalidRequest, "a path must be absolute").At(p)
	}
	if strings.IndexByte(p, 0) >= 0 {
		return "", wire.Fail(wire.InvalidRequest, "a path cannot contain NUL").At(p)
	}
	abs := path.Clean(p)
	if r, _ := rs.find(abs); r != nil {
		return abs, nil
	}
	before, _, dots := strings.Cut(p+"/", "/../")
	if r, _ := rs.find(path.Clean(before)); dots && r != nil {
		return "", wire.Fail(wire.PathEscapes, "the path leaves every root").At(p)
	}
	return "", wire.Fail(wire.OutsideRoots, "the path is not beneath the workspace or a grant").At(p)
}
