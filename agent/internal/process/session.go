package process

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	// TermGrace is how long a process has after TERM before it gets KILL.
	TermGrace = 200 * time.Millisecond
	killLimit = 2 * time.Second // for something that not even KILL ends, in uninterruptible sleep
)

// stat is what of /proc/PID/stat matters here.
type stat struct {
	pid, parent, session int
	dead                 bool
}

// processes reads /proc. Where another process is not visible it is left out.
func processes() []stat {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// The name, in parentheses, may itself contain anything.
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(f) < 4 {
			continue
		}
		parent, _ := strconv.Atoi(string(f[1]))
		session, _ := strconv.Atoi(string(f[3]))
		all = append(all, stat{pid, parent, session, f[0][0] == 'Z' || f[0][0] == 'X'})
	}
	return all
}

// inSession gives the living members of a session: the group of its leader and the groups that a shell with job
// control made. What made a session of its own has left.
func inSession(sid int) []int {
	var pids []int
	for _, p := range processes() {
		if p.session == sid && !p.dead {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// endSession ends all of a session: TERM, then KILL.
func endSession(sid int) {
	_ = syscall.Kill(-sid, syscall.SIGTERM)
	signalAll(inSession(sid), syscall.SIGTERM)
	_ = syscall.Kill(-sid, syscall.SIGCONT) // one that is stopped would not see it
	if waitUntil(TermGrace, func() bool { return len(inSession(sid)) == 0 }) {
		return
	}
	waitUntil(killLimit, func() bool {
		pids := inSession(sid) // again each time: it may be forking
		if len(pids) == 0 {
			return true
		}
		_ = syscall.Kill(-sid, syscall.SIGKILL)
		signalAll(pids, syscall.SIGKILL)
		return false
	})
}

// waitUntil asks until done or until the time is over, soon at first and then less often.
func waitUntil(limit time.Duration, done func() bool) bool {
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if done() {
			return true
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		time.Sleep(min(pause, left))
	}
}
