package process

import (
	"os"
	"syscall"
	"time"
)

// Stop ends everything: no new processes, TERM, then KILL after the grace, and returns when all children have been
// reaped.
func (t *Table) Stop(grace time.Duration) {
	t.mu.Lock()
	t.stopping = true
	t.mu.Unlock()
	empty := func() bool { return !t.reapOnce() }
	signalEverything(syscall.SIGTERM)
	signalEverything(syscall.SIGCONT) // one that is stopped would not see it
	if waitUntil(grace, empty) {
		return
	}
	waitUntil(killLimit, func() bool {
		signalEverything(syscall.SIGKILL)
		return empty()
	})
}

// signalEverything signals all of the container. Where the agent is not PID 1, in a pod whose containers share
// their processes, it may only signal what descends from it.
func signalEverything(sig syscall.Signal) {
	self := os.Getpid()
	if self == 1 {
		_ = syscall.Kill(-1, sig)
		return
	}
	all := processes()
	children := map[int][]int{}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p.pid)
	}
	for todo := children[self]; len(todo) > 0; todo = todo[1:] {
		_ = syscall.Kill(todo[0], sig)
		todo = append(todo, children[todo[0]]...)
	}
}
