package serve

import (
	"errors"
	"io"
	"os"

	"sandbox-operator.dev/agent/internal/archive"
	"sandbox-operator.dev/agent/internal/wire"
)

func (s *stream) read(r *wire.Read) error {
	if err := s.offer(r.Lane); err != nil {
		return err
	}
	f, err := s.Roots.Open(string(r.Path), r.Offset, r.Limit)
	if err != nil {
		return err
	}
	defer f.Close()
	s.watch(s.output)
	lent := wire.Buffer()
	defer wire.Release(lent)
	buf := *lent
	var total int64
	for {
		if s.ctx.Err() != nil {
			return s.ended(s.ctx.Err())
		}
		if s.switched.Load() && len(buf) == len(*lent) {
			buf = make([]byte, wire.HeaderSize+laneChunk)
		}
		n, err := f.Read(buf[wire.HeaderSize:])
		if n > 0 {
			total += int64(n)
			if s.out.SendBuffer(wire.Reply, buf[:wire.HeaderSize+n]) != nil {
				return s.ended(errGone)
			}
		}
		if err == io.EOF {
			return s.trailer(total)
		}
		if err != nil {
			return wire.From(err, string(r.Path))
		}
	}
}

func (s *stream) write(r *wire.Write) error {
	if err := s.offer(r.Lane); err != nil {
		return err
	}
	u, err := s.Roots.Create(string(r.Path), r.Mode, r.Parents, r.Exclusive)
	if err != nil {
		return err
	}
	whole := false
	defer func() {
		if !whole {
			u.Abort()
		}
	}()
	n, err := s.take(u)
	if err != nil {
		return s.ended(uploadError(err, string(r.Path)))
	}
	whole = true // Commit cleans up by itself
	if err := u.Commit(); err != nil {
		return err
	}
	return s.reply(struct {
		Bytes int64 `json:"bytes"`
	}{n})
}

// take writes what the client uploads to w.
func (s *stream) take(w io.Writer) (int64, error) {
	lent := wire.Buffer()
	defer wire.Release(lent)
	buf, in := *lent, s.uploaded()
	var total int64
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if s.switched.Load() && len(buf) == len(*lent) {
			buf = make([]byte, laneChunk)
		}
	}
}

// uploadError tells the system's refusal from an upload that was cut.
func uploadError(err error, path string) error {
	var e *wire.Error
	var system *os.PathError
	if errors.As(err, &e) || errors.As(err, &system) {
		return wire.From(err, path)
	}
	return errGone
}

func (s *stream) list(r *wire.List) error {
	infos, err := s.Roots.List(string(r.Path))
	if err != nil {
		return err
	}
	s.watch(nil)
	// In pieces, since a large directory does not fit into one message.
	buf := wire.Buffer()
	defer wire.Release(buf)
	b := append((*buf)[:wire.HeaderSize], '[')
	var total int64
	flush := func() error {
		total += int64(len(b) - wire.HeaderSize)
		err := s.out.SendBuffer(wire.Reply, b)
		b = (*buf)[:wire.HeaderSize]
		return err
	}
	for i := range infos {
		if i > 0 {
			b = append(b, ',')
		}
		b = infos[i].AppendJSON(b)
		if len(b) > wire.Chunk-8<<10 {
			if flush() != nil {
				return s.ended(errGone)
			}
		}
	}
	b = append(b, ']')
	if flush() != nil {
		return s.ended(errGone)
	}
	return s.trailer(total)
}

func (s *stream) stat(r *wire.Stat) error {
	info, err := s.Roots.Stat(string(r.Path), r.Follow)
	if err != nil {
		return err
	}
	return s.reply(info)
}

func (s *stream) mkdir(r *wire.Mkdir) error {
	if err := s.Roots.Mkdir(string(r.Path), r.Parents, r.Mode); err != nil {
		return err
	}
	return s.reply(empty{})
}

func (s *stream) remove(r *wire.Remove) error {
	s.watch(nil)
	n, err := s.Roots.Remove(s.ctx, string(r.Path), r.Recursive, r.MissingOK)
	if err != nil {
		return s.ended(err)
	}
	return s.reply(struct {
		Removed int `json:"removed"`
	}{n})
}

func (s *stream) move(r *wire.Move) error {
	if err := s.Roots.Move(string(r.Source), string(r.Destination), r.Replace); err != nil {
		return err
	}
	return s.reply(empty{})
}

func (s *stream) archive(r *wire.Archive) error {
	if err := s.offer(r.Lane); err != nil {
		return err
	}
	s.watch(s.output)
	skip := make([]string, len(r.Skip))
	for i, name := range r.Skip {
		skip[i] = string(name)
	}
	w := newBatch(s.out)
	defer w.release()
	n, err := archive.Pack(s.ctx, w, s.Roots, string(r.Path), skip)
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		return s.ended(err)
	}
	return s.trailer(n)
}

func (s *stream) extract(r *wire.Extract) error {
	if err := s.offer(r.Lane); err != nil {
		return err
	}
	rules := archive.Rules{MaxMembers: archive.DefaultMaxMembers, MaxBytes: -1, LinksAsIs: r.LinksAsIs}
	for limit, value := range map[*int64]*int64{&rules.MaxMembers: r.MaxMembers, &rules.MaxBytes: r.MaxBytes} {
		if value == nil {
			continue
		}
		if *value < 0 {
			return wire.Fail(wire.InvalidRequest, "a limit cannot be negative")
		}
		*limit = *value
	}
	done, err := archive.Unpack(s.uploaded(), s.Roots, string(r.Path), rules, string(r.StripRoot))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errGone
	}
	if err != nil {
		return s.ended(err)
	}
	return s.reply(done)
}

// batch gathers the many small writes of a tar writer into messages.
type batch struct {
	out *wire.Writer
	buf *[]byte
	n   int
}

func newBatch(out *wire.Writer) *batch { return &batch{out, wire.Buffer(), wire.HeaderSize} }

func (b *batch) release() { wire.Release(b.buf) }

func (b *batch) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := copy((*b.buf)[b.n:], p)
		p = p[n:]
		if b.n += n; b.n == len(*b.buf) {
			if err := b.flush(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

func (b *batch) flush() error {
	if b.n == wire.HeaderSize {
		return nil
	}
	err := b.out.SendBuffer(wire.Reply, (*b.buf)[:b.n])
	b.n = wire.HeaderSize
	return err
}
