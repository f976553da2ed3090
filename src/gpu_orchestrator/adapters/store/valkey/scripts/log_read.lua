-- Read a part of a task's log, with the state of the task at the same moment.
-- Arguments: id, position after which to read, most bytes of text (more by up to one entry)
-- Answers {state or '' if unknown, owner, attempt, where the log ends, entries {where it ends, text}}
local id, after, most = ARG[1], ARG[2], ARG[3]
local key = P .. 'log:' .. id
local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'tenant', 'attempt', 'log')
local ends = log_entry(last_log_entry(id, row[4])).at

local entries, size, from = {}, 0, ends > after and first_log_entry(key, after) or 0
while ends > after and size < most do
  local page = redis.call('LRANGE', key, from, from + 19)
  for _, item in ipairs(page) do
    local entry = log_entry(item)
    entries[#entries + 1] = {entry.at, entry.said}
    size, from = size + #entry.said, from + 1
    if size >= most then break end
  end
  if #page < 20 then break end
end
return cmsgpack.pack({{}, {row[1] or '', row[2] or '', tonumber(row[3] or 0), ends, entries}})
