-- Search a part of the tasks in one state, newest first, for a type and labels: they are in no list, so rows are read.
-- Arguments: state, owner or '' for all, created since (as in `list`), task type or '', labels as in `list`, where to go on
--   {created, tasks of that moment that were read already}, most tasks to read
-- Answers {{id, created} of each that matches, where to go on or {} at the end, how many were read: a large spec counts as
--   several}
local state, owner, since, at, most = ARG[1], ARG[2], ARG[3], ARG[6], ARG[7]
if since < 0 then since = NOW + since end
local MOST_BYTES = 4 * 1024 * 1024 -- of specs, whose labels may have 64 kB each: other clients wait meanwhile
local LARGE = 2048
local is_wanted = matcher(ARG[4], ARG[5])
local reads_rows = ARG[4] ~= '' or #ARG[5] > 0
local key = P .. (owner == '' and 's:' or 'o:' .. owner .. ':') .. state
local found, last, same, read, cost, bytes = {}, at[1], at[2], 0, 0, 0
local page = redis.call('ZREVRANGEBYSCORE', key, at[1] > 0 and text(at[1]) or '+inf', since > 0 and text(since) or '-inf',
  'WITHSCORES', 'LIMIT', at[2], most)
for number = 1, #page, 2 do
  if bytes > MOST_BYTES then break end
  local id, created = page[number], tonumber(page[number + 1])
  same = created == last and same + 1 or 1
  last = created
  local spec = reads_rows and redis.call('HGET', P .. 't:' .. id, 'spec')
  local size = spec and #spec or 0
  read, cost, bytes = read + 1, cost + 1 + math.floor(size / LARGE), bytes + size
  if not reads_rows or is_wanted(spec) then found[#found + 1] = {id, created} end
end
return cmsgpack.pack({{}, {found, (read == most or 2 * read < #page) and {last, same} or {}, cost}})
