package serve

import (
	"io"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/wire"
)

// LaneHello is the first byte of a connection that brings a lane, with the lane's stdin and stdout as descriptors.
// Other connections begin with yamux's version, which is 0.
const LaneHello = 'L'

// lanePipe is asked for as the size of a lane's pipes: fewer turns between us and who is at their other ends.
const lanePipe = 1 << 20

// laneChunk is what is moved at a time between a lane and a file: few lanes at once may take more than many streams.
const laneChunk = 512 << 10

// berthWait is what a lane waits for its operation.
const berthWait = time.Second

// Limits of a lane's name: whoever knows it can put content into an operation.
const minLaneID, maxLaneID = 16, 64

// lane is a second way for the content of one operation: the stdio of an exec of its own, which spares the content the
// bridge, the socket and yamux. The operation stays on its stream: its answer to an upload, and its end when the
// client goes.
type lane struct {
	in, out *os.File
	once    sync.Once
}

// close ends both pipes, also under whoever reads or writes there now.
func (l *lane) close() {
	l.once.Do(func() {
		l.in.Close()
		l.out.Close()
	})
}

// Read gives what the client sends. However it ends, the content that it was part of is not whole.
func (l *lane) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if err != nil {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// berth is where a lane joins an operation.
type berth struct {
	id   string
	mu   sync.Mutex
	lane *lane
	over bool
	done chan struct{} // closed when the operation is over
}

// join hands a lane to the operation.
func (b *berth) join(l *lane) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return errNoOperation
	}
	if b.lane != nil {
		return wire.Fail(wire.InvalidRequest, "the operation has a lane already")
	}
	b.lane = l
	return nil
}

func (b *berth) joined() (*lane, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lane == nil {
		return nil, wire.Fail(wire.InvalidRequest, "there is no lane to switch to")
	}
	return b.lane, nil
}

// abort ends whoever waits on the lane, for a client that is gone; of one that only said CANCEL the answer is left.
func (b *berth) abort(gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lane != nil && gone {
		b.lane.close()
	} else if b.lane != nil {
		b.lane.in.Close()
	}
}

var errNoOperation = wire.Fail(wire.NotFound, "no operation waits for this lane")

// offer lets a lane join this operation from now on, if the client may want one.
func (s *stream) offer(id string) error {
	if id == "" {
		return nil
	}
	if len(id) < minLaneID || len(id) > maxLaneID {
		return wire.Fail(wire.InvalidRequest, "the name of a lane has %d to %d bytes", minLaneID, maxLaneID)
	}
	b := &berth{id: id, done: make(chan struct{})}
	if _, taken := s.lanes.LoadOrStore(id, b); taken {
		return wire.Fail(wire.InvalidRequest, "another operation waits for a lane of this name")
	}
	s.berth = b
	return nil
}

// withdraw ends the lane, after the last message of the operation.
func (s *stream) withdraw() {
	if s.berth == nil {
		return
	}
	s.lanes.Delete(s.berth.id)
	s.berth.mu.Lock()
	s.berth.over = true
	s.berth.mu.Unlock()
	close(s.berth.done)
}

// uploaded is the content that the client uploads, wherever it comes.
func (s *stream) uploaded() *wire.Input {
	in := wire.NewInput(s.in)
	if s.berth != nil {
		in.Switch = func() (*wire.Reader, error) {
			l, err := s.berth.joined()
			if err != nil {
				return nil, err
			}
			s.switched.Store(true)
			s.watch(nil) // of the stream only its end, or a CANCEL, is left to come
			return wire.NewReader(l), nil
		}
	}
	return in
}

// lastWrites bounds what the last message of the operation may wait, wherever it goes.
func (s *stream) lastWrites() {
	end := time.Now().Add(lastWait)
	_ = s.conn.SetWriteDeadline(end)
	if s.berth != nil {
		if l, err := s.berth.joined(); err == nil {
			_ = l.out.SetWriteDeadline(end)
		}
	}
}

// output changes to the lane with what is sent from now on.
func (s *stream) output() error {
	if s.berth == nil {
		return wire.Fail(wire.InvalidRequest, "there is no lane to switch to")
	}
	l, err := s.berth.joined()
	if err != nil {
		return err
	}
	s.switched.Store(true)
	return s.out.Switch(wire.Switched, l.out)
}

// lane serves a connection that brings a lane until the operation is over, or who brought it is gone.
func (s *Server) lane(c net.Conn, stdio []int) {
	if len(stdio) != 2 {
		for _, fd := range stdio {
			unix.Close(fd)
		}
		log.Printf("lane refused: %d descriptors", len(stdio))
		return
	}
	for _, fd := range stdio {
		// So that closing them ends who waits on them. Nobody else uses this end of the pipes.
		_ = unix.SetNonblock(fd, true)
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, lanePipe)
	}
	l := &lane{in: os.NewFile(uintptr(stdio[0]), "lane"), out: os.NewFile(uintptr(stdio[1]), "lane")}
	defer l.close()
	out := wire.NewWriter(l.out)
	b, err := s.laneRequest(l)
	if err == nil {
		err = b.join(l)
	}
	if err != nil {
		_ = l.out.SetWriteDeadline(time.Now().Add(lastWait))
		_ = out.SendJSON(wire.Failed, wire.From(err, ""))
		return
	}
	gone := make(chan struct{})
	go func() {
		defer guard("lane")
		defer close(gone)
		_, _ = c.Read(make([]byte, 1))
	}()
	if out.SendJSON(wire.Reply, empty{}) == nil {
		select {
		case <-b.done:
		case <-gone:
		}
	}
}

// laneRequest reads for which operation a lane is.
func (s *Server) laneRequest(l *lane) (*berth, error) {
	_ = l.in.SetReadDeadline(time.Now().Add(requestWait))
	// Byte by byte, since what follows is read by the operation. It is short.
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(l, b); err != nil {
			return nil, wire.Fail(wire.InvalidRequest, "the lane named no operation")
		}
		if b[0] == '\n' {
			break
		}
		if line = append(line, b[0]); len(line) > 4*maxLaneID {
			return nil, wire.Fail(wire.InvalidRequest, "the request of a lane is longer than it can be")
		}
	}
	_ = l.in.SetReadDeadline(time.Time{})
	request, err := wire.Decode(line)
	if err != nil {
		return nil, err
	}
	r, ok := request.(*wire.Lane)
	if !ok {
		return nil, wire.Fail(wire.InvalidRequest, "a lane's request is a lane")
	}
	// The two come by different ways: the lane may be here first.
	for end := time.Now().Add(berthWait); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if b, ok := s.lanes.Load(r.ID); ok {
			return b.(*berth), nil
		}
	}
	return nil, errNoOperation
}

// greeting takes the first byte of a connection, and the descriptors that came with it.
func greeting(c *net.UnixConn) (first byte, stdio []int, err error) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(2*4))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return 0, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, nil, err
	}
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			stdio = append(stdio, fds...)
		}
	}
	return b[0], stdio, nil
}

// begun is a connection of which the first byte has been read.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 && len(p) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}
