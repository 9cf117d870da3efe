package mcbp

import (
	"errors"
	"fmt"
	"time"
)

// Version is what VERSION answers. Clients gate features by its number, and
// libmemcached wants three of them, the first above 0, in at most 31 bytes.
const Version = "1.6.0-fluxkv"

// Options configures New. The zero value means every default.
type Options struct {
	// MaxConns is the number of connections served at once; one more is closed
	// as soon as it is accepted. Default 4096.
	MaxConns int
	// MaxItemBytes bounds key + value; the engine's own limit must not be
	// lower. Default 20 MiB, at most 64 MiB.
	MaxItemBytes int
	// BatchBytesMax bounds one Apply: the engine's BatchBytesMax where that is
	// below 1 MiB. One item of any allowed size always fits. Default 1 MiB,
	// which is also the most.
	BatchBytesMax int
	// BufferBytes bounds what connections hold together in large buffers:
	// frames over 64 KiB on their way in, answers over 256 KiB on their way
	// out. Beyond it, connections that want more are not read from. Default
	// 256 MiB, at least 128 MiB.
	BufferBytes int64
	// FrameTimeout closes a connection whose started frame does not arrive in
	// this time plus one second for every 64 KiB of it. Default 30 s.
	FrameTimeout time.Duration
	// WriteTimeout closes a connection that takes no answers for this long, or
	// those of a pass not within it plus one second for every 64 KiB of them.
	// Default 30 s.
	WriteTimeout time.Duration
	// IdleTimeout closes a connection that asks nothing for this long. Default
	// 0: never.
	IdleTimeout time.Duration
	// Logf receives one line an event worth an operator's eye. Default: none.
	Logf func(format string, args ...any)
	// Now is the clock that expiry uses. Default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.MaxConns == 0 {
		o.MaxConns = 4096
	}
	if o.MaxItemBytes == 0 {
		o.MaxItemBytes = 20 << 20
	}
	if o.BatchBytesMax == 0 {
		o.BatchBytesMax = passWriteBytesMax
	}
	o.BatchBytesMax = min(o.BatchBytesMax, passWriteBytesMax)
	if o.BufferBytes == 0 {
		o.BufferBytes = 256 << 20
	}
	if o.FrameTimeout == 0 {
		o.FrameTimeout = 30 * time.Second
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 30 * time.Second
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Validate reports every option that is out of bounds, in one error.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.MaxConns < 1 {
		bad("MaxConns %d: want at least 1", o.MaxConns)
	}
	if o.MaxItemBytes < 1 || o.MaxItemBytes > 64<<20 {
		bad("MaxItemBytes %d: want 1 to 64 MiB", o.MaxItemBytes)
	}
	if o.BatchBytesMax < 1 {
		bad("BatchBytesMax %d: want at least 1", o.BatchBytesMax)
	}
	if o.BufferBytes < 128<<20 {
		bad("BufferBytes %d: want at least 128 MiB", o.BufferBytes)
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{{"FrameTimeout", o.FrameTimeout}, {"WriteTimeout", o.WriteTimeout}, {"IdleTimeout", o.IdleTimeout}} {
		if t.d < 0 {
			bad("%s %v: want no negative time", t.name, t.d)
		}
	}
	return errors.Join(errs...)
}
