"""What a conversation calls: tools, environments and MCP servers, with their schemas and limits."""
