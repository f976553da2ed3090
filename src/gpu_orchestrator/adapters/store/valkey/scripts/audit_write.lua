#!lua flags=allow-oom
-- Append entries to the audit log.
-- Arguments: number of entries that a stream keeps, entries {stream, JSON}
-- Answers nothing
local keep, entries = ARG[1], ARG[2]
local number = redis.call('INCRBY', P .. 'audit:number', #entries) - #entries
for at, each in ipairs(entries) do
  redis.call('XADD', P .. 'audit:' .. each[1], 'MAXLEN', '~', keep, text(number + at) .. '-0', 'entry', each[2])
end
return cmsgpack.pack({{}, false})
