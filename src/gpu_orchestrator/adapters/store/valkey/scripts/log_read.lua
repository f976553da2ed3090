-- Read a part of a task's log, with the state of the task at the same moment.
-- Arguments: id, position after which to read, most bytes of text (more by up to one entry)
-- Answers {state or '' if unknown, owner, attempt, where the log ends, entries {where it ends, text}}
local id, after, most = ARG[1], ARG[2], ARG[3]
local key = P .. 'log:' .. id
local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'tenant', 'attempt')
local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
local entries, size, from = {}, 0, '(' .. text(after) .. '-0'
local page
repeat
  page = redis.call('XRANGE', key, from, '+', 'COUNT', 20)
  for _, entry in ipairs(page) do
    entries[#entries + 1] = {tonumber(string.match(entry[1], '^%d+')), entry[2][6]}
    size, from = size + #entry[2][6], '(' .. entry[1]
    if size >= most then break end
  end
until #page < 20 or size >= most
return cmsgpack.pack({{}, {row[1] or '', row[2] or '', tonumber(row[3] or 0),
  last and tonumber(string.match(last[1], '^%d+')) or 0, entries}})
