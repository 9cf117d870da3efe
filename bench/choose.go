package bench

import (
	"math"
	"math/bits"
)

// random is a small generator for one thread: a counter through a hash
// (splitmix64).
type random struct{ state uint64 }

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	x := r.state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// below returns a number in 0..n-1.
func (r *random) below(n uint64) uint64 {
	hi, _ := bits.Mul64(r.next(), n)
	return hi
}

// unit returns a number in [0, 1).
func (r *random) unit() float64 { return float64(r.next()>>11) / (1 << 53) }

// zipf draws ranks 0..n-1 with weight 1/(rank+1)^theta by rejection from an
// integrable envelope (Hörmann and Derflinger 1996). It needs no table and no
// sum over all ranks, so it starts at once for any n. It is immutable.
type zipf struct {
	theta             float64
	n                 float64
	hx1, hn, shortcut float64
}

func newZipf(theta float64, n uint64) *zipf {
	z := &zipf{theta: theta, n: float64(n)}
	z.hx1 = z.integral(1.5) - 1
	z.hn = z.integral(z.n + 0.5)
	z.shortcut = 2 - z.inverse(z.integral(2.5)-z.weight(2))
	return z
}

func (z *zipf) weight(x float64) float64 { return math.Exp(-z.theta * math.Log(x)) }

// integral is the integral of weight from 1 to x.
func (z *zipf) integral(x float64) float64 {
	l := math.Log(x)
	return expm1Over((1-z.theta)*l) * l
}

func (z *zipf) inverse(y float64) float64 {
	t := max(y*(1-z.theta), -1)
	return math.Exp(log1pOver(t) * y)
}

// expm1Over is (e^x - 1) / x, and log1pOver is ln(1 + x) / x; both are 1 at 0,
// where theta is 1.
func expm1Over(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Expm1(x) / x
	}
	return 1 + x/2
}

func log1pOver(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Log1p(x) / x
	}
	return 1 - x/2
}

func (z *zipf) draw(r *random) uint64 {
	for {
		u := z.hn + r.unit()*(z.hx1-z.hn)
		x := z.inverse(u)
		k := min(max(math.Floor(x+0.5), 1), z.n)
		if k-x <= z.shortcut || u >= z.integral(k+0.5)-z.weight(k) {
			return uint64(k) - 1
		}
	}
}
