// Package mcp holds the storms of tool calls: servers of the Model Context Protocol that are killed, replies that are
// lost, and a count of what was done.
package mcp
