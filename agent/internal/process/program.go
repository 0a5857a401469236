package process

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/wire"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment overlays the agent's own environment; later layers win.
func environment(layers ...[]string) []string {
	index := map[string]int{}
	var env []string
	for _, layer := range layers {
		for _, kv := range layer {
			key, _, _ := strings.Cut(kv, "=")
			if i, ok := index[key]; ok {
				env[i] = kv
			} else {
				index[key] = len(env)
				env = append(env, kv)
			}
		}
	}
	return env
}

func lookEnv(env []string, key string) (string, bool) {
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v, true
		}
	}
	return "", false
}

// program finds what argv0 names for a process that will run in cwd with env.
func program(argv0, cwd string, env []string) (string, error) {
	if strings.Contains(argv0, "/") {
		return argv0, nil // execve says what is wrong with it, seen from cwd
	}
	path, ok := lookEnv(env, "PATH")
	if !ok {
		path = defaultPath
	}
	denied := false
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		name := filepath.Join(dir, argv0)
		if fi, err := os.Stat(name); err != nil || fi.IsDir() {
			continue
		}
		if unix.Access(name, unix.X_OK) == nil {
			return name, nil
		}
		denied = true
	}
	if denied {
		return "", wire.Fail(wire.NotExecutable, "%q in PATH is not executable", argv0)
	}
	return "", wire.Fail(wire.CommandNotFound, "there is no command %q in PATH", argv0)
}

// startError says what kept a program from starting.
func startError(err error, argv0 string) error {
	errno, _ := err.(syscall.Errno)
	var e *wire.Error
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		e = wire.Fail(wire.CommandNotFound, "%q, or the interpreter it names, does not exist", argv0)
	case syscall.EACCES, syscall.ENOEXEC, syscall.EISDIR:
		e = wire.Fail(wire.NotExecutable, "%q cannot be executed: %v", argv0, errno)
	case syscall.E2BIG:
		e = wire.Fail(wire.TooLarge, "arguments and environment are too long")
	case syscall.EAGAIN:
		e = wire.Fail(wire.TooMany, "the pod's limit of processes is reached")
	default:
		return wire.From(err, "")
	}
	e.Errno = unix.ErrnoName(errno)
	return e
}

// enter checks a working directory beforehand: execve's own error could not be told from one about the program.
func enter(dir string) error {
	fi, err := os.Stat(dir)
	if err == nil && !fi.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return wire.From(err, dir)
	}
	return nil
}
