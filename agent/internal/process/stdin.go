package process

import (
	"os"
	"sync"
)

const stdinQueue = 16 // chunks; what a process does not read waits here, so that later messages get past it

// stdin feeds a process. Writing is left to a goroutine of its own: a process that does not read must not keep a
// signal or a resize that follows the input from being seen.
type stdin struct {
	chunks   chan []byte
	done     <-chan struct{}
	end      sync.Once
	terminal *terminal // nil for a pipe
}

func newStdin(f *os.File, t *terminal, done <-chan struct{}) *stdin {
	s := &stdin{chunks: make(chan []byte, stdinQueue), done: done, terminal: t}
	go s.feed(f)
	return s
}

func (s *stdin) feed(f *os.File) {
	defer guard("input of a process")
	if s.terminal == nil {
		defer f.Close()
		go func() { // a writer that is blocked is freed by closing the file
			<-s.done
			f.Close()
		}()
	}
	broken := false
	for {
		select {
		case b := <-s.chunks:
			if b == nil {
				return
			}
			// After the reader has gone what comes is dropped, so that the sender is not stopped.
			if !broken {
				_, err := f.Write(b)
				broken = err != nil
			}
		case <-s.done:
			return
		}
	}
}

// close says that there is no more. On a terminal that is a character: sent twice when a line has been begun, since
// the first only ends the line. On a pipe it is nil, not a closed channel: another stream may still be sending.
func (s *stdin) close() {
	s.end.Do(func() {
		var last []byte
		if s.terminal != nil {
			last = s.terminal.eof()
		}
		select {
		case s.chunks <- last:
			return
		default:
		}
		go func() { // behind a full queue, which must not stop the sender
			select {
			case s.chunks <- last:
			case <-s.done:
			}
		}()
	})
}
