package sstable

// appendSeparator appends a short key S with last <= S < next to dst; last <
// next. It is last itself where nothing shorter is found quickly.
func appendSeparator(dst, last, next []byte) []byte {
	n := lcp(last, next)
	if len(next) > n+1 {
		// A strict prefix of next is below it, and above last by its last byte.
		return append(dst, next[:n+1]...)
	}
	if n < len(last) && last[n]+1 < next[n] {
		dst = append(dst, last[:n+1]...)
		dst[len(dst)-1]++
		return dst
	}
	// Whatever begins like last up to the difference is below next: raise a
	// byte behind it.
	for i := n + 1; i < len(last); i++ {
		if last[i] != 0xff {
			dst = append(dst, last[:i+1]...)
			dst[len(dst)-1]++
			return dst
		}
	}
	return append(dst, last...)
}
