package process

import (
	"context"
	"errors"
	"testing"
	"time"

	"sandbox-operator.dev/agent/internal/wire"
)

func take(t *testing.T, o *output, offset uint64) (wire.Kind, string) {
	t.Helper()
	kind, data, exit, err := o.next(context.Background(), offset)
	if err != nil || exit != nil {
		t.Fatalf("at %d: %v %v", offset, exit, err)
	}
	return kind, string(data)
}

func TestTheLogIsReadFromAnyOffset(t *testing.T) {
	o := newOutput()
	o.append(wire.Stdout, []byte("ab"))
	o.append(wire.Stdout, []byte("cd"))
	o.append(wire.Stderr, []byte("EF"))
	o.append(wire.Stdout, []byte("g"))
	o.finish(&Exit{Code: 3})
	for offset, want := range []string{"abcd", "bcd", "cd", "d", "EF", "F", "g"} {
		if _, got := take(t, o, uint64(offset)); got != want {
			t.Errorf("at %d: %q", offset, got)
		}
	}
	if _, _, exit, _ := o.next(context.Background(), 7); exit == nil || exit.Code != 3 {
		t.Error("no exit at the end")
	}
	if len(o.pieces) != 3 {
		t.Errorf("%d pieces", len(o.pieces))
	}
	o.ack(3) // within a piece
	if _, got := take(t, o, 3); got != "d" {
		t.Errorf("%q", got)
	}
	var e *wire.Error
	if _, _, _, err := o.next(context.Background(), 2); !errors.As(err, &e) || e.Code != wire.OutputLost {
		t.Error(err)
	}
	o.ack(1) // backwards: nothing
	o.ack(1 << 62)
	if o.size != 0 || o.pieces != nil || o.start != 7 {
		t.Errorf("%d bytes are kept, from %d", o.size, o.start)
	}
}

func TestAFullLogWaits(t *testing.T) {
	before := kept.Load()
	o := newOutput()
	chunk := make([]byte, pieceMax)
	done := make(chan struct{})
	go func() {
		for range keep/pieceMax + 10 {
			o.append(wire.Stdout, chunk)
		}
		close(done)
	}()
	time.Sleep(50 * time.Millisecond)
	select {
	case <-done:
		t.Fatal("it did not wait")
	default:
	}
	o.discard()
	<-done
	if kept.Load() != before {
		t.Errorf("%d bytes are still counted", kept.Load()-before)
	}
}

func TestTinyPiecesCount(t *testing.T) {
	o := newOutput()
	for i := range 1000 {
		o.append(wire.Stdout+wire.Kind(i%2), []byte("x"))
	}
	if o.size < 1000*pieceCost {
		t.Errorf("counted as %d bytes", o.size)
	}
	o.discard()
}

func TestACanceledWaitEnds(t *testing.T) {
	o := newOutput()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, func() { cancel(); o.wake() })
	if _, _, _, err := o.next(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLaterLayersOfTheEnvironmentWin(t *testing.T) {
	env := environment([]string{"A=1", "B=2", "A=3"}, []string{"C=4"}, []string{"B=5", "D"})
	want := []string{"A=3", "B=5", "C=4", "D"}
	for i := range want {
		if env[i] != want[i] {
			t.Fatalf("%q", env)
		}
	}
}
