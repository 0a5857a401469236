package serve

import (
	"encoding/binary"
	"io"
	"strings"
	"syscall"
	"time"

	"sandbox-operator.dev/agent/internal/process"
	"sandbox-operator.dev/agent/internal/wire"
)

const maxSignal = 64

func (s *stream) exec(r *wire.Exec) error {
	if r.TimeoutMS < 0 || r.TimeoutMS > int64(time.Duration(1<<63-1)/time.Millisecond) {
		return wire.Fail(wire.InvalidRequest, "a timeout is a number of milliseconds")
	}
	spec := process.Spec{
		Cwd: string(r.Cwd), User: r.User, Stdin: r.Stdin, TTY: r.TTY, Rows: r.Rows, Cols: r.Cols,
		Timeout: time.Duration(r.TimeoutMS) * time.Millisecond, Detached: r.Detach,
	}
	if spec.Cwd == "" {
		spec.Cwd = s.Roots[0].Path
	} else if spec.Cwd[0] != '/' || strings.IndexByte(spec.Cwd, 0) >= 0 {
		return wire.Fail(wire.InvalidRequest, "cwd must be an absolute path").At(spec.Cwd)
	}
	for _, a := range r.Argv {
		spec.Argv = append(spec.Argv, string(a))
	}
	for k, v := range r.Env {
		if k == "" || strings.IndexByte(string(k), '=') >= 0 {
			return wire.Fail(wire.InvalidRequest, "a variable's name is not empty and has no `=`")
		}
		spec.Env = append(spec.Env, string(k)+"="+string(v))
	}
	p, err := s.Table.Start(spec)
	if err != nil {
		return err
	}
	if p.Detached {
		// When this does not arrive the process goes on, and is found with `processes`.
		if err := s.reply(struct {
			ID     string `json:"id"`
			BootID string `json:"boot_id"`
		}{p.ID, s.Table.BootID}); err != nil {
			return errGone
		}
	}
	return s.follow(p, 0)
}

func (s *stream) attach(r *wire.Attach) error {
	p, err := s.Table.Find(r.ID, r.BootID)
	if err != nil {
		return err
	}
	if !p.Detached {
		return wire.Fail(wire.InvalidRequest, "process %s is not detached", r.ID)
	}
	return s.follow(p, r.Offset)
}

func (s *stream) kill(r *wire.Kill) error {
	p, err := s.Table.Find(r.ID, r.BootID)
	if err != nil {
		return err
	}
	if p.Ended() {
		s.Table.Forget(p)
	}
	p.End()
	return s.reply(empty{})
}

// follow sends the output of a process from an offset on, and then its exit.
func (s *stream) follow(p *process.Process, offset uint64) error {
	s.following.Add(1)
	defer s.following.Add(-1)
	if !p.Detached {
		defer func() {
			if !p.Ended() {
				go s.end(p)
			} else {
				s.Table.Forget(p)
			}
		}()
	}
	go s.control(p)
	for {
		kind, data, exit, err := p.Next(s.ctx, offset)
		if err != nil {
			return s.ended(err)
		}
		if exit != nil {
			if s.out.SendJSON(wire.Exit, exit) != nil {
				return errGone
			}
			return nil
		}
		if err := s.out.Send(kind, data); err != nil {
			return s.ended(errGone)
		}
		offset += uint64(len(data))
		if !p.Detached {
			p.Ack(offset)
		}
	}
}

// end ends a process that nobody waits for any more.
func (s *stream) end(p *process.Process) {
	defer guard("ending a process")
	s.Table.Forget(p) // first, so that it is not blocked by output that nobody reads
	p.End()
}

// control does what the client says while it follows a process.
func (s *stream) control(p *process.Process) {
	defer guard("stream")
	defer p.Wake() // Next looks at the context again
	for {
		kind, n, err := s.in.Next()
		if err != nil {
			s.failed(err)
			return
		}
		switch kind {
		case wire.Data:
			err = s.input(p)
		case wire.End:
			p.CloseInput()
		case wire.Cancel:
			go p.End()
		case wire.Signal:
			var b []byte
			if b, err = s.in.Payload(1); err == nil {
				if b[0] == 0 || b[0] > maxSignal {
					err = wire.Fail(wire.InvalidRequest, "there is no signal %d", b[0])
				} else {
					p.Signal(syscall.Signal(b[0]))
				}
			}
		case wire.Resize:
			var b []byte
			if b, err = s.in.Payload(4); err == nil {
				p.Resize(binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]))
			}
		case wire.Ack:
			var b []byte
			if b, err = s.in.Payload(8); err == nil && p.Detached {
				p.Ack(binary.BigEndian.Uint64(b))
			}
		default:
			err = wire.Fail(wire.InvalidRequest, "unknown message kind %d (%d bytes)", kind, n)
		}
		if err != nil {
			s.failed(err)
			return
		}
	}
}

// failed ends the operation: with an ERROR when the client broke the rules, silently when it is gone.
func (s *stream) failed(err error) {
	if e, ok := err.(*wire.Error); ok {
		s.cancel(e)
		return
	}
	s.leave()
}

// input hands the payload of an INPUT to the process, in pieces.
func (s *stream) input(p *process.Process) error {
	if !p.TakesInput() {
		return nil // the next message skips it
	}
	buf := wire.Buffer()
	defer wire.Release(buf)
	for {
		n, err := s.in.Read(*buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		b := append([]byte(nil), (*buf)[:n]...)
		for !p.Input(b, 100*time.Millisecond) {
			// The process does not read. Whether the client is still there is not seen by reading either,
			// since what it has already sent comes first; an empty read tells of a reset.
			if _, err := s.conn.Read(nil); err != nil {
				return err
			}
			if s.conn.Session().IsClosed() || s.ctx.Err() != nil {
				return errGone
			}
		}
	}
}
