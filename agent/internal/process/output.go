package process

import (
	"context"
	"sync"
	"sync/atomic"

	"sandbox-operator.dev/agent/internal/wire"
)

const (
	keep       = 4 << 20  // of unacknowledged output; a full log blocks the process
	keepAll    = 16 << 20 // of all processes together; beyond it each keeps only keepScarce
	keepScarce = 64 << 10
	pieceMax   = 64 << 10
	pieceCost  = 64 // what a piece costs beside its bytes, so that many tiny ones count
)

// kept is what all logs hold. The agent's memory counts against the user's container.
var kept atomic.Int64

type piece struct {
	offset uint64
	kind   wire.Kind
	data   []byte
}

// output is the log of a process: what it wrote, in order, from the first byte that nobody has acknowledged.
type output struct {
	mu        sync.Mutex
	changed   *sync.Cond
	pieces    []piece
	size      int
	start     uint64 // the first offset that is still here
	end       uint64
	exit      *Exit
	discarded bool // nobody will read it any more
}

func newOutput() *output {
	o := &output{}
	o.changed = sync.NewCond(&o.mu)
	return o
}

func (o *output) wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changed.Broadcast()
}

func (o *output) full() bool {
	return o.size >= keep || o.size >= keepScarce && kept.Load() >= keepAll
}

// append adds a copy of b, waiting while the log is full.
func (o *output) append(kind wire.Kind, b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.full() && !o.discarded {
		o.changed.Wait()
	}
	if o.discarded {
		return
	}
	grown := len(b)
	if last := len(o.pieces) - 1; last >= 0 && o.pieces[last].kind == kind && len(o.pieces[last].data)+len(b) <= pieceMax {
		// Readers that hold the shorter slice are not disturbed: appending never changes what is there.
		o.pieces[last].data = append(o.pieces[last].data, b...)
	} else {
		o.pieces = append(o.pieces, piece{o.end, kind, append([]byte(nil), b...)})
		grown += pieceCost
	}
	o.end += uint64(len(b))
	o.grow(grown)
	o.changed.Broadcast()
}

func (o *output) grow(n int) {
	o.size += n
	kept.Add(int64(n))
}

// ack drops what lies before offset. Part of a piece may be dropped; what was never written cannot be acknowledged.
func (o *output) ack(offset uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(min(offset, o.end))
	o.changed.Broadcast()
}

func (o *output) drop(offset uint64) {
	if offset <= o.start {
		return
	}
	n := 0
	for n < len(o.pieces) && o.pieces[n].offset+uint64(len(o.pieces[n].data)) <= offset {
		o.grow(-len(o.pieces[n].data) - pieceCost)
		o.pieces[n].data = nil
		n++
	}
	if o.pieces = o.pieces[n:]; len(o.pieces) == 0 {
		o.pieces = nil
	}
	o.start = offset
}

// discard makes the log a sink: the process may then write without end, and nothing is kept.
func (o *output) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discarded = true
	o.drop(o.end)
	o.changed.Broadcast()
}

func (o *output) finish(e *Exit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exit = e
	o.changed.Broadcast()
}

// next waits for what follows offset: bytes of one kind, or the exit when there are no more.
// Whoever cancels ctx must call wake.
func (o *output) next(ctx context.Context, offset uint64) (wire.Kind, []byte, *Exit, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return 0, nil, nil, err
		}
		if offset > o.end {
			return 0, nil, nil, wire.Fail(wire.InvalidRequest, "offset %d lies beyond the output, which has %d bytes", offset, o.end)
		}
		if offset < o.start {
			return 0, nil, nil, wire.Fail(wire.OutputLost, "output before offset %d is no longer kept", o.start)
		}
		for i := len(o.pieces) - 1; i >= 0 && offset < o.end; i-- { // readers are near the end
			if p := o.pieces[i]; p.offset <= offset {
				return p.kind, p.data[offset-p.offset:], nil, nil
			}
		}
		if o.exit != nil {
			return 0, nil, o.exit, nil
		}
		o.changed.Wait()
	}
}
