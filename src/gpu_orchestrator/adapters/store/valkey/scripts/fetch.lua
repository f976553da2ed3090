-- Read rows of tasks and workers.
-- Arguments: task ids, worker names, what to read of tasks beside the columns that are always small: 0 nothing, 1 their
--   parameters, 2 their results
-- Answers {now, tasks {field, value, ...} each, workers {lease, active, field, value, ...} each}; {} for a missing row.
--   Tasks after the first MOST_BYTES are left out, but at least one is read: other clients wait meanwhile
local MOST_BYTES = 8 * 1024 * 1024
local skipped = {params = ARG[3] ~= 1, result = ARG[3] ~= 2, kept = true}
local tasks, workers, bytes = {}, {}, 0

local function row_of(key)
  local fields, row = {}, {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if not skipped[field] then fields[#fields + 1] = field end
  end
  if #fields == 0 then return row end
  for at, value in ipairs(redis.call('HMGET', key, unpack(fields))) do
    row[#row + 1] = fields[at]
    row[#row + 1] = value
    bytes = bytes + #value
  end
  row[#row + 1] = 'result_bytes'
  row[#row + 1] = text(redis.call('HSTRLEN', key, 'result'))
  return row
end

for number, id in ipairs(ARG[1]) do
  if bytes >= MOST_BYTES then break end
  tasks[number] = row_of(P .. 't:' .. id)
end
for number, name in ipairs(ARG[2]) do workers[number] = worker_row(name) end
return cmsgpack.pack({{}, {NOW, tasks, workers}})
