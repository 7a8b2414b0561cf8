// Package demo runs the reference payments system the way it lives in production, only faster and under worse conditions: a
// provider that fails, clients that lose their connections, processes that are killed. At the end it counts.
package demo
