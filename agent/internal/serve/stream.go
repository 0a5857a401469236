package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"sandbox-operator.dev/agent/internal/process"
	"sandbox-operator.dev/agent/internal/version"
	"sandbox-operator.dev/agent/internal/wire"
)

// stream is one operation of a client.
type stream struct {
	*Server
	conn   *yamux.Stream
	in     *wire.Reader
	out    *wire.Writer
	ctx    context.Context // ends when the client does not want the answer any more
	cancel context.CancelCauseFunc

	berth    *berth      // of an operation that may get a lane, else nil
	switched atomic.Bool // content goes over the lane
}

var (
	errGone = errors.New("the client is gone") // nobody is there to be told
	errRaw  = errors.New("the stream has been handed over")
)

func (s *Server) stream(conn *yamux.Stream) {
	defer guard("stream")
	n := s.streams.Add(1)
	defer s.streams.Add(-1)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	st := &stream{Server: s, conn: conn, in: wire.NewReader(conn), out: wire.NewWriter(conn), ctx: ctx, cancel: cancel}
	err := error(wire.Fail(wire.TooMany, "there are %d streams already", MaxStreams))
	if n <= MaxStreams {
		err = st.serve()
	}
	if err != nil && !errors.Is(err, errGone) && !errors.Is(err, errRaw) {
		// A client that stopped reading is not waited for.
		st.lastWrites()
		_ = st.out.SendJSON(wire.Failed, wire.From(err, ""))
	}
	st.withdraw()
	conn.Close()
	// yamux keeps the stream until the client closes it too; what still arrives is not kept meanwhile.
	_ = conn.SetReadDeadline(time.Now().Add(lastWait))
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{conn})
}

// serve answers the request; what it returns is sent as the ERROR.
func (s *stream) serve() (err error) {
	defer func() {
		if r := recover(); r != nil {
			log.Printf("internal error: %v\n%s", r, debug.Stack())
			err = wire.Fail(wire.IO, "internal error of the agent: %v", r)
		}
	}()
	_ = s.conn.SetReadDeadline(time.Now().Add(requestWait))
	line, err := s.in.Line()
	if errors.Is(err, yamux.ErrTimeout) {
		return wire.Fail(wire.Timeout, "no request came")
	}
	var e *wire.Error
	if err != nil && !errors.As(err, &e) {
		return errGone
	}
	if err != nil {
		return err
	}
	_ = s.conn.SetReadDeadline(time.Time{})
	request, err := wire.Decode(line)
	if err != nil {
		return err
	}
	return s.dispatch(request)
}

func (s *stream) dispatch(request any) error {
	switch r := request.(type) {
	case *wire.Hello:
		return s.hello()
	case *wire.Exec:
		return s.exec(r)
	case *wire.Attach:
		return s.attach(r)
	case *wire.Kill:
		return s.kill(r)
	case *wire.Processes:
		return s.reply(s.Table.List())
	case *wire.Forward:
		return s.forward(r)
	case *wire.Read:
		return s.as(r.Common, func() error { return s.read(r) })
	case *wire.Write:
		return s.as(r.Common, func() error { return s.write(r) })
	case *wire.List:
		return s.as(r.Common, func() error { return s.list(r) })
	case *wire.Stat:
		return s.as(r.Common, func() error { return s.stat(r) })
	case *wire.Mkdir:
		return s.as(r.Common, func() error { return s.mkdir(r) })
	case *wire.Remove:
		return s.as(r.Common, func() error { return s.remove(r) })
	case *wire.Move:
		return s.as(r.Common, func() error { return s.move(r) })
	case *wire.Archive:
		return s.as(r.Common, func() error { return s.archive(r) })
	case *wire.Extract:
		return s.as(r.Common, func() error { return s.extract(r) })
	}
	return wire.Fail(wire.UnknownOperation, "unknown operation")
}

// as acts on files as a user. Another than the agent's own would have to be acted for with that user's rights, never
// with the agent's, or a link in the workspace would lend them.
func (s *stream) as(c wire.Common, act func() error) error {
	account, err := process.LookUp(c.User)
	if err != nil {
		return err
	}
	if account != nil {
		return wire.Fail(wire.UnsupportedUser, "files of another user cannot be acted on")
	}
	return act()
}

func (s *stream) reply(v any) error { return s.out.SendJSON(wire.Reply, v) }

type empty struct{}

func (s *stream) hello() error {
	type grant struct {
		Path     wire.Name `json:"path"`
		ReadOnly bool      `json:"read_only"`
	}
	grants := []grant{}
	for _, r := range s.Roots[1:] {
		grants = append(grants, grant{wire.Name(r.Path), r.ReadOnly})
	}
	return s.reply(struct {
		Protocol int       `json:"protocol"`
		Agent    string    `json:"agent"`
		BootID   string    `json:"boot_id"`
		UID      int       `json:"uid"`
		GID      int       `json:"gid"`
		Root     wire.Name `json:"root"`
		Grants   []grant   `json:"grants"`
		PID      int       `json:"pid"`
		Lanes    bool      `json:"lanes"`
	}{version.Protocol, version.Agent, s.Table.BootID, os.Getuid(), os.Getgid(), wire.Name(s.Roots[0].Path), grants, os.Getpid(), true})
}

// watch cancels the operation when the client resets or closes the stream, or says CANCEL. For operations that take
// nothing from the client after the request, but perhaps a SWITCH, which changes is called for.
func (s *stream) watch(changes func() error) {
	go func() {
		defer guard("stream")
		for {
			kind, _, err := s.in.Next()
			switch {
			case err != nil:
				s.leave()
				return
			case kind == wire.Switch && changes != nil:
				err = changes()
			case kind == wire.Cancel:
				err = wire.ErrCanceled
			default:
				err = wire.Fail(wire.InvalidRequest, "message kind %d does not belong here", kind)
			}
			if err != nil {
				s.cancel(err)
				if s.berth != nil {
					s.berth.abort(false)
				}
				return
			}
			changes = nil
		}
	}()
}

// leave ends the operation of a client that is gone, also where it waits for the client to read.
func (s *stream) leave() {
	s.cancel(errGone)
	_ = s.conn.SetWriteDeadline(time.Now())
	if s.berth != nil {
		s.berth.abort(true)
	}
}

// ended gives why the operation ended if it was the client's doing, else err.
func (s *stream) ended(err error) error {
	if cause := context.Cause(s.ctx); cause != nil && err != nil {
		return cause
	}
	return err
}

// trailer ends content.
func (s *stream) trailer(n int64) error {
	b, err := json.Marshal(struct {
		Bytes int64 `json:"bytes"`
	}{n})
	if err != nil {
		return err
	}
	return s.out.Send(wire.End, b)
}
