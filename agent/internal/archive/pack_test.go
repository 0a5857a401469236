package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/files"
	"sandbox-operator.dev/agent/internal/wire"
)

// unprivileged takes from the calling goroutine what lets root read everything, for the rest of the test.
func unprivileged(t *testing.T) {
	runtime.LockOSThread() // never unlocked, so that the thread ends with the test
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	if err := unix.Capset(&head, &data[0]); err != nil {
		t.Fatal(err)
	}
}

func TestWhatItsOwnerHasClosedIsPackedAndStaysClosed(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"closed", "unlisted", "closed/deep"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	modes := map[string]os.FileMode{
		"f": 0, "w": 0o222, "closed/f": 0o600, "closed/deep/f": 0, "unlisted/f": 0o600,
		"closed/deep": 0, "closed": 0, "unlisted": 0o300,
	}
	for _, name := range []string{"f", "w", "closed/f", "closed/deep/f", "unlisted/f"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"f", "w", "closed/deep/f", "closed/deep", "closed", "unlisted"} {
		if err := os.Chmod(filepath.Join(root, name), modes[name]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, name), 0o700) })
	}
	unprivileged(t)
	if _, err := os.ReadFile(filepath.Join(root, "f")); !errors.Is(err, os.ErrPermission) {
		t.Fatalf("the test can read everything: %v", err)
	}
	var packed bytes.Buffer
	if _, err := Pack(context.Background(), &packed, files.Roots{{Path: root}}, root, nil); err != nil {
		t.Fatal(err)
	}
	seen := map[string]os.FileMode{}
	for r := tar.NewReader(&packed); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		seen[name] = os.FileMode(h.Mode)
		if content, _ := io.ReadAll(r); h.Typeflag == tar.TypeReg && string(content) != name {
			t.Errorf("%s: %q", name, content)
		}
	}
	if fmt.Sprint(seen) != fmt.Sprint(modes) {
		t.Errorf("%v, not %v", seen, modes)
	}
	for _, name := range []string{"f", "w", "closed", "unlisted"} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != modes[name] {
			t.Errorf("%s is left as %v, %v", name, info, err)
		}
	}
}

func TestWhatSomeoneElseHasClosedIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs a second user")
	}
	for _, kind := range []string{"file", "directory"} {
		root := t.TempDir()
		path := filepath.Join(root, "theirs")
		err := os.Mkdir(path, 0o700)
		if kind == "file" {
			err = errors.Join(os.Remove(path), os.WriteFile(path, []byte("x"), 0o600))
		}
		if err = errors.Join(err, os.Chown(path, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			unprivileged(t)
			_, err := Pack(context.Background(), io.Discard, files.Roots{{Path: root}}, root, nil)
			done <- err
		}()
		var e *wire.Error
		if err := <-done; !errors.As(err, &e) || e.Code != wire.PermissionDenied || string(e.Path) != path ||
			e.Errno != "EACCES" || !strings.Contains(e.Message, "make it readable") {
			t.Errorf("%s: %+v", kind, err)
		}
	}
}
