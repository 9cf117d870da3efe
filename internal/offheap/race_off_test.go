//go:build !race

package offheap

const raceBuild = false
