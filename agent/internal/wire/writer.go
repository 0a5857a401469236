package wire

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"sync"
)

// Writer sends messages, each with one write: over yamux every write is a frame.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter sends on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

var buffers = sync.Pool{New: func() any { b := make([]byte, HeaderSize+Chunk); return &b }}

// Buffer lends a chunk with room for a message's header in front; give it back with Release.
func Buffer() *[]byte { return buffers.Get().(*[]byte) }

// Release takes a Buffer back.
func Release(b *[]byte) { buffers.Put(b) }

// SendBuffer sends the payload buf[HeaderSize:], writing the header into the room in front of it.
func (w *Writer) SendBuffer(kind Kind, buf []byte) error {
	buf[0] = byte(kind)
	binary.BigEndian.PutUint32(buf[1:HeaderSize], uint32(len(buf)-HeaderSize))
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(buf)
	return err
}

// Switch ends what is sent here with an empty message; all that follows goes to another writer.
func (w *Writer) Switch(kind Kind, to io.Writer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.w.Write([]byte{byte(kind), 0, 0, 0, 0}); err != nil {
		return err
	}
	w.w = to
	return nil
}

// Send sends a payload of any length, as several messages of the kind when it is larger than a chunk.
func (w *Writer) Send(kind Kind, payload []byte) error {
	b := Buffer()
	defer Release(b)
	for {
		n := copy((*b)[HeaderSize:], payload)
		if err := w.SendBuffer(kind, (*b)[:HeaderSize+n]); err != nil {
			return err
		}
		if payload = payload[n:]; len(payload) == 0 {
			return nil
		}
	}
}

// SendJSON sends v as one message.
func (w *Writer) SendJSON(kind Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > MaxMessage {
		return Fail(TooLarge, "the answer is longer than a message may be")
	}
	return w.SendBuffer(kind, append(make([]byte, HeaderSize, HeaderSize+len(b)), b...))
}

// Write sends p as REPLY content, so that a Writer is the io.Writer that an archive is packed into.
func (w *Writer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := w.Send(Reply, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
