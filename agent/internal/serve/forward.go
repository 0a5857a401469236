package serve

import (
	"errors"
	"io"
	"net"
	"strconv"
	"time"

	"sandbox-operator.dev/agent/internal/wire"
)

const dialWait = 10 * time.Second

// forward makes the stream a connection to a port of the pod. The end of one direction is passed on alone; a reset,
// or a lost client, ends both.
func (s *stream) forward(r *wire.Forward) error {
	if r.Port < 1 || r.Port > 65535 {
		return wire.Fail(wire.InvalidRequest, "there is no port %d", r.Port)
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port)), dialWait)
	if err != nil {
		var t net.Error
		if errors.As(err, &t) && t.Timeout() {
			return wire.Fail(wire.Timeout, "port %d does not answer", r.Port)
		}
		return wire.From(err, "")
	}
	defer c.Close()
	if err := s.out.Send(wire.Reply, nil); err != nil {
		return errGone
	}
	tcp := c.(*net.TCPConn)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer guard("forward")
		buf := wire.Buffer()
		defer wire.Release(buf)
		if _, err := io.CopyBuffer(struct{ io.Writer }{tcp}, struct{ io.Reader }{s.in.Buffered()}, *buf); err != nil {
			tcp.Close()
			return
		}
		if s.conn.Session().IsClosed() { // which reads like an end
			tcp.Close()
			return
		}
		_ = tcp.CloseWrite()
	}()
	buf := wire.Buffer()
	defer wire.Release(buf)
	if _, err := io.CopyBuffer(struct{ io.Writer }{s.conn}, struct{ io.Reader }{tcp}, *buf); err != nil {
		return errRaw
	}
	s.conn.Close()
	<-done
	return errRaw
}
