package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/files"
	"sandbox-operator.dev/agent/internal/process"
	"sandbox-operator.dev/agent/internal/serve"
)

type options struct {
	roots   files.Roots
	grace   time.Duration
	command []string
}

func parse(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("init", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var root string
	flags.StringVar(&root, "root", "", "")
	grant := func(readOnly bool) func(string) error {
		return func(path string) error {
			if !filepath.IsAbs(path) {
				return errors.New("a grant is an absolute path")
			}
			o.roots = append(o.roots, &files.Root{Path: filepath.Clean(path), ReadOnly: readOnly})
			return nil
		}
	}
	flags.Func("grant", "", grant(false))
	flags.Func("grant-read-only", "", grant(true))
	grace := flags.Float64("grace", 5, "")
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("init: %w", err)
	}
	if !filepath.IsAbs(root) {
		return nil, errors.New("init: --root must be an absolute path")
	}
	if *grace < 0 || *grace > 1e6 {
		return nil, errors.New("init: --grace is a number of seconds")
	}
	o.roots = append(files.Roots{{Path: filepath.Clean(root)}}, o.roots...)
	o.grace = time.Duration(*grace * float64(time.Second))
	o.command = flags.Args()
	return o, nil
}

// initialize is PID 1. The status is for the kubelet: 0 after a stop signal, the command's own when that failed.
func initialize(args []string) (int, error) {
	o, err := parse(args)
	if err != nil {
		return 0, err
	}
	stop := stops()
	// Orphans come here also where the pod shares one PID namespace and something else is PID 1.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	path := socket()
	private(filepath.Dir(path))
	listener, err := serve.Listen(path)
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	table := process.NewTable()
	go table.Reap()
	server := &serve.Server{Table: table, Roots: o.roots}
	go server.Serve(listener)

	failed, err := start(table, o)
	status := 0
	if err != nil {
		// As a shell would say it; the container restarts, and the failure shows in the pod's status.
		log.Printf("command: %v", err)
		status = 127
	} else {
		select {
		case <-stop:
		case status = <-failed:
			log.Printf("command failed with status %d", status)
		}
	}
	table.Stop(o.grace)
	server.Idle(250 * time.Millisecond)
	return status, nil
}

// private makes the run directory safe from other users where that is the agent's to do.
func private(dir string) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return // Listen says what is wrong
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Getuid() && st.Mode&0o022 != 0 {
		_ = os.Chmod(dir, fi.Mode().Perm()&^0o022)
	}
}

// start runs the command beside the server. The channel gives its status if it fails.
func start(table *process.Table, o *options) (<-chan int, error) {
	failed := make(chan int, 1)
	if len(o.command) == 0 {
		return failed, nil
	}
	gone, err := table.Command(o.command, o.roots[0].Path)
	if err != nil {
		return nil, err
	}
	go func() {
		switch ws := <-gone; {
		case ws.Signaled():
			failed <- 128 + int(ws.Signal())
		case ws.ExitStatus() != 0:
			failed <- ws.ExitStatus()
		}
	}()
	return failed, nil
}
