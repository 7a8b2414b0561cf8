//go:build !linux

package main

import "time"

// alarm sleeps as exactly as the system lets a program of Go.
type alarm struct{}

func newAlarm() (alarm, error) { return alarm{}, nil }

func (alarm) sleep(wait time.Duration) { time.Sleep(wait) }

func (alarm) close() error { return nil }
