package files

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process of the workspace exchanges a directory and a link to the outside all the while. Whatever comes of the
// operations, nothing outside is read or changed.
func TestSwappedLinksNeverLeadOutside(t *testing.T) {
	base := t.TempDir()
	root, outside := filepath.Join(base, "ws"), filepath.Join(base, "outside")
	for _, d := range []string{root + "/d/sub", outside + "/sub"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range map[string]string{root + "/d/f": "inside", root + "/d/sub/f": "inside", outside + "/f": "secret", outside + "/sub/f": "secret"} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", root+"/l"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../outside/f", root+"/d/lf"); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	// By descriptors: by names the exchange would itself go through the link now and then, and carry the secret in.
	fds := make([]int, 2)
	for i, dir := range []string{root, root + "/d"} {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	for i, pair := range [][2]string{{"d", "l"}, {"f", "lf"}} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Renameat2(fds[i], pair[0], fds[i], pair[1], unix.RENAME_EXCHANGE)
				}
			}
		})
	}
	rs := Roots{{Path: root}}
	read := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, path := range []string{"/d/f", "/l/f", "/d/sub/f", "/d/lf"} {
			if f, err := rs.Open(root+path, 0, nil); err == nil {
				b, _ := io.ReadAll(f)
				f.Close()
				if string(b) == "secret" {
					t.Fatal("read outside")
				}
				read++
			}
			if u, err := rs.Create(root+path, nil, true, false); err == nil {
				_, _ = io.WriteString(u, "inside")
				_ = u.Commit()
			}
		}
		if infos, err := rs.List(root + "/d"); err == nil {
			for _, i := range infos {
				if i.Name == "f" && i.Kind == "file" && i.Size != int64(len("inside")) && i.Size != 0 {
					t.Fatal("listed outside")
				}
			}
		}
		_ = rs.Mkdir(root+"/d/new/deep", true, nil)
		_, _ = rs.Remove(context.Background(), root+"/d/new", true, true)
		_ = rs.Move(root+"/d/sub/f", root+"/d/sub/g", true)
		_ = rs.Move(root+"/d/sub/g", root+"/d/sub/f", true)
	}
	close(stop)
	wg.Wait()
	if read == 0 {
		t.Error("nothing was ever read: the test shows nothing")
	}
	var all []string
	_ = filepath.Walk(outside, func(p string, fi os.FileInfo, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimPrefix(p, outside))
		if fi.Mode().IsRegular() {
			if b, _ := os.ReadFile(p); string(b) != "secret" {
				t.Errorf("%s was changed to %q", p, b)
			}
		}
		return nil
	})
	if s := strings.Join(all, " "); s != " /f /sub /sub/f" {
		t.Errorf("outside there is now: %s", s)
	}
}

func TestFindsTheInnermostRoot(t *testing.T) {
	rs := Roots{{Path: "/ws"}, {Path: "/ws/tools"}, {Path: "/opt"}, {Path: "/"}}
	for abs, want := range map[string]string{"/ws/a/b": "/ws a/b", "/ws": "/ws ", "/ws/tools": "/ws/tools ", "/ws/tools2": "/ws tools2", "/wsx": "/ wsx", "/opt/x": "/opt x"} {
		r, rest := rs.find(abs)
		if got := r.Path + " " + rest; got != want {
			t.Errorf("%s: %q, want %q", abs, got, want)
		}
	}
	if !rs.holds("/ws") || rs.holds("/opt") || !rs.holds("/") {
		t.Error("holds")
	}
}
