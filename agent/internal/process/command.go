package process

import (
	"os"
	"syscall"
)

// Command starts the container's own command, with the agent's stdio, so that what it prints is the container's log.
func (t *Table) Command(argv []string, cwd string) (<-chan syscall.WaitStatus, error) {
	if err := enter(cwd); err != nil {
		return nil, err
	}
	path, err := program(argv[0], cwd, os.Environ())
	if err != nil {
		return nil, err
	}
	_, gone, err := t.Spawn(path, argv, &syscall.ProcAttr{
		Dir: cwd, Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, startError(err, argv[0])
	}
	return gone, nil
}
