package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// ErrCanceled is what an Input gives when the client said CANCEL.
var ErrCanceled = &Error{Code: Canceled, Message: "canceled by the client"}

// Reader takes a stream apart. It is used by one goroutine at a time.
type Reader struct {
	r    *bufio.Reader
	left int // of the current message's payload
}

// NewReader reads through a small buffer: large payloads go past it, and an idle stream costs little.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 4096)} }

// Buffered is everything from the current position on, for a stream that stops being messages (forward).
func (r *Reader) Buffered() io.Reader { return r.r }

// Line reads the request.
func (r *Reader) Line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		if len(line)+len(part) > MaxRequest+1 {
			return nil, Fail(InvalidRequest, "the request is longer than %d bytes", MaxRequest)
		}
		if err == nil && line == nil {
			return part[:len(part)-1], nil // valid until the next read, which is after it was decoded
		}
		line = append(line, part...)
		if err == nil {
			return line[:len(line)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// Next goes to the next message, past what was not read of the current one.
// io.EOF means that the stream ended between two messages.
func (r *Reader) Next() (Kind, int, error) {
	if r.left > 0 {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return 0, 0, err
		}
	}
	var head [HeaderSize]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return 0, 0, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxMessage {
		return 0, 0, Fail(InvalidRequest, "a message of %d bytes is longer than %d", n, MaxMessage)
	}
	r.left = int(n)
	return Kind(head[0]), r.left, nil
}

// Read reads the payload of the current message, to its end.
func (r *Reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	if len(p) > r.left {
		p = p[:r.left]
	}
	n, err := r.r.Read(p)
	r.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Payload reads a payload that must have exactly n bytes.
func (r *Reader) Payload(n int) ([]byte, error) {
	if r.left != n {
		return nil, Fail(InvalidRequest, "a message of this kind has %d bytes, not %d", n, r.left)
	}
	p := make([]byte, n)
	_, err := io.ReadFull(r, p)
	return p, err
}

// Input is the content that a client uploads: INPUT messages up to END. The stream's own end is not the end of
// the content, since a lost connection looks the same.
type Input struct {
	// Switch gives where the content goes on after a SWITCH; nil where there is nowhere.
	Switch func() (*Reader, error)

	r    *Reader
	open bool
	err  error
}

// NewInput reads content from where r is.
func NewInput(r *Reader) *Input { return &Input{r: r} }

func (i *Input) Read(p []byte) (int, error) {
	for i.err == nil {
		if i.open {
			n, err := i.r.Read(p)
			if n > 0 || len(p) == 0 {
				return n, nil
			}
			if i.open = false; err != io.EOF {
				i.err = err
				break
			}
		}
		kind, _, err := i.r.Next()
		switch {
		case err == io.EOF:
			i.err = io.ErrUnexpectedEOF
		case err != nil:
			i.err = err
		case kind == Data:
			i.open = true
		case kind == End:
			i.err = io.EOF
		case kind == Cancel:
			i.err = ErrCanceled
		case kind == Switch && i.Switch != nil:
			i.r, i.err = i.Switch()
			i.Switch = nil
		default:
			i.err = Fail(InvalidRequest, "message kind %d does not belong in an upload", kind)
		}
	}
	return 0, i.err
}
