package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// stopSignals are what images use as STOPSIGNAL. PID 1 ignores a signal that it has no handler for, so each of them
// must be taken.
var stopSignals = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGPWR,
	syscall.Signal(37), // SIGRTMIN+3, as systemd's images have it; C libraries keep the first two for themselves
}

func stops() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, stopSignals...)
	return c
}
