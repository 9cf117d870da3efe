//go:build race

package offheap

const raceBuild = true
