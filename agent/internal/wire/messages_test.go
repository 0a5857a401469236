package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func message(kind Kind, payload string) string {
	var b bytes.Buffer
	_ = NewWriter(&b).Send(kind, []byte(payload))
	return b.String()
}

func TestContentComesWhateverItsPieces(t *testing.T) {
	big := strings.Repeat("0123456789", 30_000)
	stream := message(Data, "ab") + message(Data, "") + message(Data, big) + message(End, "")
	for _, wrap := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
		got, err := io.ReadAll(NewInput(NewReader(wrap(strings.NewReader(stream)))))
		if err != nil || string(got) != "ab"+big {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
}

func TestAnUploadEndsOnlyWithItsEnd(t *testing.T) {
	whole := message(Data, "abc") + message(Data, "def")
	for n := range whole {
		if _, err := io.ReadAll(NewInput(NewReader(strings.NewReader(whole[:n])))); err != io.ErrUnexpectedEOF {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	if _, err := io.ReadAll(NewInput(NewReader(strings.NewReader(whole + message(Cancel, ""))))); !errors.Is(err, ErrCanceled) {
		t.Fatalf("canceled: %v", err)
	}
	if _, err := io.ReadAll(NewInput(NewReader(strings.NewReader(whole + message(Resize, "1234"))))); code(err) != InvalidRequest {
		t.Fatalf("a message that does not belong: %v", err)
	}
}

func TestLengthsAreBounded(t *testing.T) {
	r := NewReader(strings.NewReader("\x00\x00\x10\x00\x01" + strings.Repeat("x", 100)))
	if _, _, err := r.Next(); code(err) != InvalidRequest {
		t.Fatalf("a long message: %v", err)
	}
	r = NewReader(strings.NewReader(strings.Repeat("x", MaxRequest) + "\n"))
	if line, err := r.Line(); err != nil || len(line) != MaxRequest {
		t.Fatalf("the longest request: %d, %v", len(line), err)
	}
	r = NewReader(strings.NewReader(strings.Repeat("x", MaxRequest+1) + "\n"))
	if _, err := r.Line(); code(err) != InvalidRequest {
		t.Fatalf("a longer one: %v", err)
	}
	r = NewReader(strings.NewReader(message(Signal, "12")))
	if _, _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Payload(1); code(err) != InvalidRequest {
		t.Fatalf("a payload of the wrong length: %v", err)
	}
}

func TestLargePayloadsAreSplit(t *testing.T) {
	payload := strings.Repeat("x", 3*Chunk)
	r := NewReader(strings.NewReader(message(Stdout, payload)))
	var got strings.Builder
	for {
		kind, n, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil || kind != Stdout || n > MaxMessage {
			t.Fatalf("%d %d %v", kind, n, err)
		}
		if _, err := io.Copy(&got, r); err != nil {
			t.Fatal(err)
		}
	}
	if got.String() != payload {
		t.Fatal("not the same")
	}
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte("{}\n" + message(Data, "abc") + message(End, "")))
	f.Add([]byte("{}\n\x00\xff\xff\xff\xff"))
	f.Add([]byte("\n\x05\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		if _, err := r.Line(); err != nil {
			return
		}
		n, err := io.Copy(io.Discard, NewInput(r))
		if n > int64(len(b)) {
			t.Fatal("more than was sent")
		}
		if err == nil && !bytes.Contains(b, []byte{byte(End), 0, 0, 0, 0}) && !bytes.Contains(b, []byte{byte(End)}) {
			t.Fatal("an end that nobody said")
		}
	})
}
