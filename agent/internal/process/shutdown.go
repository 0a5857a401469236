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
	everything := func(sig syscall.Signal) {
		if os.Getpid() == 1 {
			_ = syscall.Kill(-1, sig) // also what `kubectl exec` brought in
		} else {
			signalDescendants(sig)
		}
	}
	everything(syscall.SIGTERM)
	everything(syscall.SIGCONT) // one that is stopped would not see it
	if waitUntil(grace, empty) {
		return
	}
	waitUntil(killLimit, func() bool {
		// Not the bridges, which still have to carry the exits of these. What else there is dies with PID 1.
		signalDescendants(syscall.SIGKILL)
		return empty()
	})
}

// signalDescendants signals what the agent started or adopted.
func signalDescendants(sig syscall.Signal) {
	children := map[int][]int{}
	for _, p := range processes() {
		children[p.parent] = append(children[p.parent], p.pid)
	}
	for todo := children[os.Getpid()]; len(todo) > 0; todo = todo[1:] {
		_ = syscall.Kill(todo[0], sig)
		todo = append(todo, children[todo[0]]...)
	}
}
