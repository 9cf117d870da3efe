package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"fluxkv/mcbp"
)

// fakeServer answers GET and SET from a map, and misbehaves when told to.
type fakeServer struct {
	listener net.Listener
	// answer may change an answer; nil bytes end the connection, empty bytes
	// swallow the answer. n counts requests of all connections from 1.
	answer func(n int, r *mcbp.Response) []byte

	mu   sync.Mutex
	n    int
	docs map[string]string
}

func startFake(t *testing.T, answer func(n int, r *mcbp.Response) []byte) *fakeServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if answer == nil {
		answer = func(_ int, r *mcbp.Response) []byte { return r.Append(nil) }
	}
	s := &fakeServer{listener: l, answer: answer, docs: make(map[string]string)}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer c.Close()
				s.serve(c)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return s
}

func (s *fakeServer) addr() string { return s.listener.Addr().String() }

func (s *fakeServer) documents() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.docs)
}

func (s *fakeServer) serve(c net.Conn) {
	r, w := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
	for {
		// Answers leave before a read that may wait: the rest of a frame may
		// come only after them.
		if r.Buffered() < mcbp.HeaderBytes && w.Flush() != nil {
			return
		}
		var head [mcbp.HeaderBytes]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		frame := make([]byte, len(head)+int(binary.BigEndian.Uint32(head[8:])))
		copy(frame, head[:])
		if r.Buffered() < len(frame)-len(head) && w.Flush() != nil {
			return
		}
		if _, err := io.ReadFull(r, frame[len(head):]); err != nil {
			return
		}
		q, _, err := mcbp.DecodeRequest(frame)
		if err != nil {
			return
		}
		out, err := s.do(&q)
		if err != nil {
			w.Flush()
			return
		}
		w.Write(out)
	}
}

var errHangUp = errors.New("hang up")

func (s *fakeServer) do(q *mcbp.Request) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	a := mcbp.Response{Opcode: q.Opcode, Opaque: q.Opaque}
	switch q.Opcode {
	case mcbp.OpSet:
		if string(q.Extras) != "\x00\x00\x00\x00\x00\x00\x00\x00" {
			a.Status = mcbp.StatusInvalid
			break
		}
		s.docs[string(q.Key)] = string(q.Value)
	case mcbp.OpGet:
		if v, ok := s.docs[string(q.Key)]; ok {
			a.Extras, a.Value = make([]byte, 4), []byte(v)
		} else {
			a.Status, a.Value = mcbp.StatusNotFound, []byte("Not found")
		}
	case mcbp.OpNoop:
	default:
		a.Status = mcbp.StatusUnknownCommand
	}
	out := s.answer(s.n, &a)
	if out == nil {
		return nil, errHangUp
	}
	return out, nil
}
