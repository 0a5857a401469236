// Package cli is the command line of the agent.
package cli

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"

	"sandbox-operator.dev/agent/internal/version"
)

const usage = `usage: agent install DIR
       agent init --root DIR [--grant DIR]... [--grant-read-only DIR]... [--grace SECONDS] [-- COMMAND...]
       agent bridge
       agent lane
       agent keeper
       agent version`

// memory is what the agent's heap should stay below: it counts against the user's container.
const memory = 32 << 20

// Main runs a command and gives the exit status.
func Main(args []string) int {
	log.SetFlags(0)
	log.SetPrefix("agent: ")
	debug.SetMemoryLimit(memory)
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	var err error
	switch command, rest := args[0], args[1:]; command {
	case "install":
		err = install(rest)
	case "init":
		var status int
		if status, err = initialize(rest); err == nil {
			return status
		}
	case "bridge":
		err = bridge()
	case "lane":
		err = lane()
	case "keeper":
		err = keeper()
	case "version":
		fmt.Println(version.Agent)
	case "help", "-h", "--help":
		fmt.Println(usage)
	default:
		err = errUsage
	}
	if errors.Is(err, errUsage) {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	if err != nil {
		log.Print(err)
		return 1
	}
	return 0
}

var errUsage = errors.New("usage")

// socket is where the agent listens.
func socket() string {
	dir := os.Getenv("SANDBOX_RUN_DIR")
	if dir == "" {
		dir = "/.sandbox/run"
	}
	return filepath.Join(dir, "agent.sock")
}

// install copies this binary, so that an image without a shell can bring it along. The copy takes its name when it
// is whole: one that is running is replaced, not written into.
func install(args []string) (err error) {
	if len(args) != 1 {
		return errUsage
	}
	source, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(args[0], 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(args[0], ".agent-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = io.Copy(f, source)
	if cerr := f.Chmod(0o755); err == nil {
		err = cerr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(args[0], "agent"))
}
