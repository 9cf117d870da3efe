package mcbp

import (
	"math"
	"time"
)

// relativeSecondsMax is 30 days: an expiry up to it counts from now, one above
// it is absolute Unix time.
const relativeSecondsMax = 30 * 24 * 60 * 60

// absoluteExpiry turns a request's expiry into absolute Unix seconds, 0 for
// never. It is done at once, so that neither a restart nor a step of the clock
// moves it. A relative one is rounded up: a document never goes early. An
// absolute time in the past stays what it is: stored, and gone at once.
// 0xffffffff is the year 2106.
func absoluteExpiry(expiry uint32, now func() time.Time) uint32 {
	if expiry == 0 || expiry > relativeSecondsMax {
		return expiry
	}
	t := now()
	at := t.Unix() + int64(expiry)
	if t.Nanosecond() > 0 {
		at++
	}
	return uint32(min(max(at, 1), math.MaxUint32))
}

// flushTime turns the delay of a FLUSH into a time; zero means now.
func flushTime(delay uint32, now func() time.Time) time.Time {
	switch {
	case delay == 0:
		return time.Time{}
	case delay <= relativeSecondsMax:
		return now().Add(time.Duration(delay) * time.Second)
	}
	if at := time.Unix(int64(delay), 0); at.After(now()) {
		return at
	}
	return time.Time{}
}
