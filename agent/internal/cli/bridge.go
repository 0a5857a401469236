package cli

import (
	"errors"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"sandbox-operator.dev/agent/internal/peer"
)

// bridge joins stdin and stdout to the agent. Nothing else is ever written to stdout.
//
// It ends when either side does: the stream is whole or gone. TERM is left to the agent, which signals everything in
// the container when it stops, and whose last words this has still to carry.
func bridge() error {
	signal.Ignore(syscall.SIGTERM)
	conn, err := net.Dial("unix", socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := peer.Check(conn); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- carry(conn, os.Stdin) }()
	go func() { ended <- carry(os.Stdout, conn) }()
	return <-ended
}

// carry copies with plain reads and writes: splicing, which io.Copy would choose, holds back small pieces.
func carry(dst io.Writer, src io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 64<<10))
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil // the other side has ended, which is how bridges end
	}
	return err
}
