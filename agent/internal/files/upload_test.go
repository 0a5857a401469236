package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// Where the file system knows nameless files and where it does not: the same files, modes and errors.
func TestUploadsOfBothKinds(t *testing.T) {
	for kind, withName := range map[string]bool{"nameless": false, "named": true} {
		t.Run(kind, func(t *testing.T) {
			named.Store(withName)
			defer named.Store(false)
			dir := t.TempDir()
			roots := Roots{{Path: dir}}
			if err := os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o640); err != nil {
				t.Fatal(err)
			}
			for name, mode := range map[string]os.FileMode{"old": 0o640, "new": 0o644} {
				u, err := roots.Create(filepath.Join(dir, name), nil, false, false)
				if err != nil {
					t.Fatal(err)
				}
				if u.nameless == withName {
					t.Errorf("nameless: %v", u.nameless)
				}
				_, _ = u.WriteString("content")
				if seen, err := roots.List(dir); err != nil || strings.Contains(string(seen[0].Name), "upload") {
					t.Errorf("an unfinished upload is listed: %v, %v", seen, err)
				}
				if err := u.Commit(); err != nil {
					t.Fatal(err)
				}
				got, _ := os.ReadFile(filepath.Join(dir, name))
				info, err := os.Stat(filepath.Join(dir, name))
				if err != nil || string(got) != "content" || info.Mode() != mode {
					t.Errorf("%s: %q %v %v", name, got, info, err)
				}
			}
			u, err := roots.Create(filepath.Join(dir, "late"), nil, false, true)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("nowhere", filepath.Join(dir, "late")); err != nil {
				t.Fatal(err)
			}
			if err := u.Commit(); err == nil || !strings.Contains(err.Error(), "exists") {
				t.Errorf("exclusive over a dangling link: %v", err)
			}
			u, err = roots.Create(filepath.Join(dir, "dropped"), nil, false, false)
			if err != nil {
				t.Fatal(err)
			}
			u.Abort()
			if got := names(t, dir); got != "late new old" {
				t.Errorf("left: %s", got)
			}
		})
	}
}

func TestWhereNamelessFilesCannotBeGivenANameTheNextOnesAreNamed(t *testing.T) {
	defer named.Store(false)
	dir := t.TempDir()
	roots := Roots{{Path: dir}}
	u, err := roots.Create(filepath.Join(dir, "a"), nil, false, false)
	if err != nil {
		t.Fatal(err)
	}
	if !u.nameless {
		t.Skip("no nameless files here")
	}
	// A file that was opened to be without a name for ever stands in for a system that gives none.
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	u.File.Close()
	u.File = os.NewFile(uintptr(fd), "upload")
	if err := u.Commit(); err == nil {
		t.Error("it was given a name")
	}
	u, err = roots.Create(filepath.Join(dir, "a"), nil, false, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "a" {
		t.Errorf("left: %s", got)
	}
}
