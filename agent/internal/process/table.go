// Package process starts, reaps and remembers processes. The agent is PID 1, so every orphan of the container
// ends here, and wait4 has exactly one caller: os/exec is not used anywhere, since its own wait would race with it.
//
// A process is independent of the stream that asked for it: its output goes to a bounded log, which any number of
// streams may follow by offset.
package process

import (
	"crypto/rand"
	"encoding/hex"
	"log"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	"sandbox-operator.dev/agent/internal/wire"
)

// Limits of a table.
const (
	MaxRunning  = 512
	maxFinished = 128              // detached processes whose end the client may not have seen yet
	keepFor     = 10 * time.Minute // how long after its end
)

// Table holds the processes of one boot of the agent.
type Table struct {
	BootID string

	// forking makes a new pid known before the reaper can see its end.
	forking sync.Mutex
	waiting map[int]chan syscall.WaitStatus

	mu       sync.Mutex
	byID     map[string]*Process
	next     int
	running  int
	stopping bool
}

// NewTable makes an empty table. Reap must run beside it.
func NewTable() *Table {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	return &Table{
		BootID:  hex.EncodeToString(id),
		waiting: map[int]chan syscall.WaitStatus{},
		byID:    map[string]*Process{},
	}
}

// Reap collects every child that ends, its own and adopted ones, for as long as the agent lives.
func (t *Table) Reap() {
	children := make(chan os.Signal, 1) // one is enough: a pass collects all
	signal.Notify(children, syscall.SIGCHLD)
	for {
		t.reapOnce()
		<-children
	}
}

// reapOnce collects what has ended; false means that there is no child left at all.
func (t *Table) reapOnce() bool {
	t.forking.Lock()
	defer t.forking.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return false
		case pid == 0:
			return true
		default:
			if gone := t.waiting[pid]; gone != nil {
				delete(t.waiting, pid)
				gone <- status
			}
		}
	}
}

// Spawn starts a program; its status arrives on the channel when it has been reaped.
func (t *Table) Spawn(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	t.forking.Lock()
	defer t.forking.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	gone := make(chan syscall.WaitStatus, 1)
	t.waiting[pid] = gone
	return pid, gone, nil
}

// reserve counts a process before it is started, so that the limit holds.
func (t *Table) reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return wire.Fail(wire.Stopping, "the agent is stopping")
	}
	if t.running >= MaxRunning {
		return wire.Fail(wire.TooMany, "%d processes are running already", t.running)
	}
	t.running++
	return nil
}

func (t *Table) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
}

func (t *Table) add(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	p.ID = strconv.Itoa(t.next)
	t.byID[p.ID] = p
}

// ended notes the end of p. One that belongs to a stream is forgotten with the stream; a detached one stays for a
// while, since the connection may have been cut before its EXIT arrived.
func (t *Table) ended(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	if !p.Detached {
		return
	}
	time.AfterFunc(keepFor, func() { t.Forget(p) })
	var ended []*Process
	for _, q := range t.byID {
		if q.Detached && q.Ended() {
			ended = append(ended, q)
		}
	}
	if len(ended) > maxFinished {
		sort.Slice(ended, func(i, j int) bool { return ended[i].ended.Before(ended[j].ended) })
		for _, q := range ended[:len(ended)-maxFinished] {
			delete(t.byID, q.ID)
			q.out.discard()
		}
	}
}

// Forget drops p and what is kept of its output. It need not have ended.
func (t *Table) Forget(p *Process) {
	t.mu.Lock()
	delete(t.byID, p.ID)
	t.mu.Unlock()
	p.out.discard()
}

// Find gives a process by what the client was told.
func (t *Table) Find(id, boot string) (*Process, error) {
	if boot != t.BootID {
		return nil, wire.Fail(wire.WrongBoot, "the agent has restarted since; its processes are gone")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		return p, nil
	}
	return nil, wire.Fail(wire.UnknownProcess, "there is no process %.64q", id)
}

// Info is an entry of `processes`.
type Info struct {
	ID       string    `json:"id"`
	PID      int       `json:"pid"`
	Argv0    wire.Name `json:"argv0"`
	Detached bool      `json:"detached"`
	Running  bool      `json:"running"`
	Seconds  float64   `json:"seconds"`
}

// List gives what the table holds, oldest first.
func (t *Table) List() []Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	infos := make([]Info, 0, len(t.byID))
	for _, p := range t.byID {
		end := time.Now()
		if p.Ended() {
			end = p.ended
		}
		infos = append(infos, Info{p.ID, p.PID, p.argv0, p.Detached, !p.Ended(), end.Sub(p.started).Seconds()})
	}
	sort.Slice(infos, func(i, j int) bool {
		a, b := infos[i].ID, infos[j].ID
		return len(a) < len(b) || len(a) == len(b) && a < b
	})
	return infos
}

// guard keeps a panic in one process's work from ending PID 1, and with it the container.
func guard(what string) {
	if r := recover(); r != nil {
		log.Printf("internal error: %s: %v", what, r)
	}
}
