package process

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sandbox-operator.dev/agent/internal/wire"
)

// Spec is what to run.
type Spec struct {
	Argv       []string
	Env        []string // over the agent's own
	Cwd        string
	User       wire.User
	Stdin      bool
	TTY        bool
	Rows, Cols uint16
	Timeout    time.Duration // none if 0
	Detached   bool
}

// Exit is how a process ended.
type Exit struct {
	Code     int  `json:"code"`
	Signal   int  `json:"signal"`
	OOM      bool `json:"oom"`
	TimedOut bool `json:"timed_out"`
}

// Process is a program that was started for a client.
type Process struct {
	ID       string
	PID      int // and its session and group
	Detached bool

	argv0    wire.Name
	started  time.Time
	out      *output
	in       *stdin    // nil without
	terminal *terminal // nil without
	oomsAt   int

	gone  chan struct{} // closed when it has been reaped
	ended time.Time     // valid once gone is closed

	ending    sync.Once
	endBegun  atomic.Bool
	endDone   chan struct{}
	timedOut  atomic.Bool
	timeoutAt *time.Timer
}

// Start starts a process and remembers it.
func (t *Table) Start(s Spec) (p *Process, err error) {
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return nil, wire.Fail(wire.InvalidRequest, "argv is empty")
	}
	for _, v := range append(s.Argv[:len(s.Argv):len(s.Argv)], s.Env...) {
		if strings.IndexByte(v, 0) >= 0 {
			return nil, wire.Fail(wire.InvalidRequest, "arguments and environment cannot contain NUL")
		}
	}
	account, err := LookUp(s.User)
	if err != nil {
		return nil, err
	}
	env := environment(os.Environ(), s.Env)
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: s.TTY}
	if account != nil {
		if err := account.check(s.TTY); err != nil {
			return nil, err
		}
		env = environment(os.Environ(), account.Env, s.Env)
		sys.Credential = account.Credential
	}
	if _, ok := lookEnv(env, "TERM"); s.TTY && !ok {
		env = append(env, "TERM=xterm")
	}
	if err := enter(s.Cwd); err != nil {
		return nil, err
	}
	path, err := program(s.Argv[0], s.Cwd, env)
	if err != nil {
		return nil, err
	}
	if err := t.reserve(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.release()
		}
	}()

	p = &Process{
		Detached: s.Detached,
		argv0:    wire.Name(s.Argv[0][:min(len(s.Argv[0]), 256)]),
		out:      newOutput(),
		oomsAt:   oomKills(),
		gone:     make(chan struct{}),
		endDone:  make(chan struct{}),
	}
	plumbing, err := connect(s)
	if err != nil {
		return nil, wire.From(err, "")
	}
	if account != nil && s.TTY {
		if err := plumbing.theirs[0].Chown(int(account.Credential.Uid), -1); err != nil {
			plumbing.close()
			return nil, account.unsupported()
		}
	}
	files := make([]uintptr, 3)
	for i, f := range plumbing.theirs {
		files[i] = f.Fd() // which also makes it blocking, as programs expect
	}
	p.started = time.Now()
	pid, status, err := t.Spawn(path, s.Argv, &syscall.ProcAttr{Dir: s.Cwd, Env: env, Files: files, Sys: sys})
	if err != nil {
		plumbing.close()
		if err == syscall.EPERM && account != nil {
			return nil, account.unsupported()
		}
		return nil, startError(err, s.Argv[0])
	}
	plumbing.closeTheirs()
	p.PID = pid
	p.terminal = plumbing.terminal
	if plumbing.in != nil {
		p.in = newStdin(plumbing.in, plumbing.terminal, p.gone)
	}
	t.add(p)
	var pumps sync.WaitGroup
	for i, f := range plumbing.outs {
		pumps.Go(func() { p.pump(wire.Stdout+wire.Kind(i), f) })
	}
	if s.Timeout > 0 {
		p.timeoutAt = time.AfterFunc(s.Timeout, func() {
			p.timedOut.Store(true)
			p.End()
		})
	}
	go t.watch(p, status, plumbing.outs, &pumps)
	return p, nil
}

// watch waits for the end of p and makes it known, once all that p wrote is in the log.
func (t *Table) watch(p *Process, status <-chan syscall.WaitStatus, outs []*os.File, pumps *sync.WaitGroup) {
	defer guard("end of a process")
	ws := <-status
	p.ended = time.Now()
	close(p.gone)
	t.ended(p)
	for _, f := range outs {
		_ = f.SetReadDeadline(time.Now().Add(linger))
	}
	if p.timeoutAt != nil {
		p.timeoutAt.Stop()
	}
	e := Exit{Code: ws.ExitStatus()}
	if ws.Signaled() {
		e.Signal = int(ws.Signal())
		e.Code = 128 + e.Signal
	}
	// A shell whose child was killed reports it in its own status.
	if e.Code == 128+int(syscall.SIGKILL) {
		e.OOM = oomKills() > p.oomsAt
	}
	pumps.Wait()
	if p.endBegun.Load() {
		<-p.endDone // the client is told when all are gone, not only the first
	}
	e.TimedOut = p.timedOut.Load()
	p.out.finish(&e)
}

// Ended says whether the process itself has ended; its output may not have been read yet.
func (p *Process) Ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// End ends the process and what it started in its session (TERM, then KILL), and returns when they are gone.
func (p *Process) End() {
	p.ending.Do(func() {
		defer close(p.endDone)
		defer guard("ending a process")
		if p.Ended() {
			// What it left running in its session keeps its number from being given to another. So either there
			// is something and it is its own, or there is a new process of that number, which is not.
			left := inSession(p.PID)
			if len(left) == 0 || slices.Contains(left, p.PID) {
				return
			}
		}
		p.endBegun.Store(true)
		endSession(p.PID)
		select {
		case <-p.gone:
		case <-time.After(killLimit):
		}
	})
	<-p.endDone
}

// Signal signals the process group.
func (p *Process) Signal(sig syscall.Signal) {
	select {
	case <-p.gone:
	default:
		_ = syscall.Kill(-p.PID, sig)
	}
}

// Next waits for what follows offset in the output: bytes of one kind, or the exit.
func (p *Process) Next(ctx context.Context, offset uint64) (wire.Kind, []byte, *Exit, error) {
	return p.out.next(ctx, offset)
}

// Wake makes Next look at its context again.
func (p *Process) Wake() { p.out.wake() }

// Ack says that output before offset is safe with the client.
func (p *Process) Ack(offset uint64) { p.out.ack(offset) }

// Input queues b, which is the caller's no longer, for the process's stdin. It gives false when there is no room
// within the time; the caller then looks after other things and tries again.
func (p *Process) Input(b []byte, wait time.Duration) bool {
	if p.in == nil || len(b) == 0 {
		return true
	}
	if p.terminal != nil {
		p.terminal.typed(b)
	}
	select { // without a timer, as nearly always
	case p.in.chunks <- b:
		return true
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case p.in.chunks <- b:
		return true
	case <-p.gone:
		return true
	case <-timer.C:
		return false
	}
}

// CloseInput ends stdin after what is queued.
func (p *Process) CloseInput() {
	if p.in != nil {
		p.in.close()
	}
}

// TakesInput says whether stdin is connected.
func (p *Process) TakesInput() bool { return p.in != nil }

// Resize resizes the terminal, if there is one.
func (p *Process) Resize(rows, cols uint16) {
	if p.terminal != nil {
		_ = p.terminal.resize(rows, cols)
	}
}
