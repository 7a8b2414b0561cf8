// Package redis keeps records in Redis or Valkey.
package redis
