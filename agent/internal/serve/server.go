// Package serve answers the streams of clients: yamux over the connections of the unix socket, one operation a
// stream. It joins wire, process, files and archive; the rules of each are there.
package serve

import (
	"errors"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/files"
	"sandbox-operator.dev/agent/internal/peer"
	"sandbox-operator.dev/agent/internal/process"
)

// Limits of a server.
const (
	MaxStreams     = 1024
	MaxConnections = 64

	window = 4 << 20 // of a stream, in each direction
	// A client that is busy or paused for a while is not a dead one.
	patience    = 60 * time.Second
	requestWait = 30 * time.Second // for the request of a stream
	lastWait    = 10 * time.Second // for the client to close a stream that the agent has closed
)

// Server is the agent's side of all connections.
type Server struct {
	Table *process.Table
	Roots files.Roots

	streams     atomic.Int64
	connections atomic.Int64
	following   atomic.Int64 // streams that an EXIT is still to be sent on
	lanes       sync.Map     // what waits for a lane: by its name, a *berth
}

// Serve accepts connections until the listener is closed.
func (s *Server) Serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many files, perhaps: it may pass
			log.Printf("accept: %v", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go s.connection(c)
	}
}

func (s *Server) connection(c net.Conn) {
	defer guard("connection")
	defer c.Close()
	if err := peer.Check(c); err != nil {
		log.Printf("connection refused: %v", err)
		return
	}
	if s.connections.Add(1) > MaxConnections {
		s.connections.Add(-1)
		log.Printf("connection refused: there are %d already", MaxConnections)
		return
	}
	defer s.connections.Add(-1)
	first, stdio, err := greeting(c.(*net.UnixConn)) // peer.Check refuses any other
	if err != nil {
		return
	}
	if first == LaneHello {
		s.lane(c, stdio)
		return
	}
	for _, fd := range stdio { // nobody asked for them
		unix.Close(fd)
	}
	s.ServeConn(&begun{c, []byte{first}})
}

// ServeConn serves one connection until it ends.
func (s *Server) ServeConn(c net.Conn) {
	conf := yamux.DefaultConfig()
	conf.AcceptBacklog = MaxStreams
	conf.MaxStreamWindowSize = window
	conf.ConnectionWriteTimeout = patience
	conf.LogOutput, conf.Logger = nil, quiet{}
	session, err := yamux.Server(&joined{Conn: c}, conf)
	if err != nil {
		log.Printf("yamux: %v", err)
		return
	}
	defer session.Close()
	for {
		st, err := session.AcceptStream()
		if err == nil {
			go s.stream(st)
		} else if session.IsClosed() {
			return
		}
	}
}

// Idle waits until every EXIT has been sent and had time to pass the bridge, but not for long.
func (s *Server) Idle(limit time.Duration) {
	if s.connections.Load() == 0 {
		return
	}
	for end := time.Now().Add(limit); s.following.Load() > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
}

// joined sends a frame's header together with its body: yamux writes them one after the other, and each write
// would become a message of its own on the way to the client.
type joined struct {
	net.Conn
	held []byte
}

const (
	yamuxHeader = 12
	yamuxData   = 0
)

func (j *joined) Write(b []byte) (int, error) {
	if j.held == nil && len(b) == yamuxHeader && b[1] == yamuxData && [4]byte(b[8:]) != [4]byte{} {
		j.held = append(make([]byte, 0, yamuxHeader), b...) // yamux's only writer sends the body next
		return len(b), nil
	}
	if j.held == nil {
		return j.Conn.Write(b)
	}
	both := net.Buffers{j.held, b}
	j.held = nil
	n, err := both.WriteTo(j.Conn)
	return max(0, int(n)-yamuxHeader), err
}

// quiet passes on only what yamux calls an error: its warnings are about frames that cross a reset.
type quiet struct{}

func (quiet) Print(v ...any)   {}
func (quiet) Println(v ...any) {}
func (quiet) Printf(format string, v ...any) {
	if strings.HasPrefix(format, "[ERR]") {
		log.Printf(format, v...)
	}
}

func guard(what string) {
	if r := recover(); r != nil {
		log.Printf("internal error: %s: %v", what, r)
	}
}

// Listen makes the socket. One that a dead agent left is replaced, a live agent's is not.
func Listen(path string) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, errors.New("another agent listens on " + path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// From the first moment it is for nobody else.
	old := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	return l, err
}
