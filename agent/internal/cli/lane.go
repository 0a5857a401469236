package cli

import (
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"sandbox-operator.dev/agent/internal/peer"
	"sandbox-operator.dev/agent/internal/serve"
)

// lane lends the agent stdin and stdout for the content of one operation, and ends when the agent has done with them.
// The agent reads and writes them itself: what it may do with files, and as whom, is decided there and nowhere else.
// TERM is left to the agent, as with a bridge.
func lane() error {
	signal.Ignore(syscall.SIGTERM)
	conn, err := net.Dial("unix", socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := peer.Check(conn); err != nil {
		return err
	}
	stdio := syscall.UnixRights(int(os.Stdin.Fd()), int(os.Stdout.Fd()))
	if _, _, err := conn.(*net.UnixConn).WriteMsgUnix([]byte{serve.LaneHello}, stdio, nil); err != nil {
		return err
	}
	// Its own ends must not keep the pipes open when the agent closes them.
	os.Stdin.Close()
	os.Stdout.Close()
	_, err = io.Copy(io.Discard, conn)
	return err
}
